"""GGUF files of decoders that rank documents: the labels of their heads, and their templates."""

from polyfleet.loading.gguf.vocabulary import PREFIX
from polyfleet.loading.ranking import ANSWERS, DOCUMENT, QUERY, ranking
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields

TEMPLATE = "tokenizer.chat_template.rerank"


def gguf_ranking(fields: Fields, rows: int, config: ModelConfig) -> ModelConfig:
    """The model as one that ranks. `cls.output.weight` has so many rows, one for each label; 0: there is none."""
    key = f"{fields.text('general.architecture')}.classifier.output_labels"
    labels, tokens = fields.items(key) if fields.has(key) else [], fields.values.get(PREFIX + "tokens")
    if not rows:
        return config
    if (rows, tuple(labels)) != (len(ANSWERS), ANSWERS) or not isinstance(tokens, list):
        raise fields.error(f"its head tells {rows} labels apart {labels}; supported are yes and no")
    return ranking(config, tuple(tokens.index(each) for each in ANSWERS if each in tokens), fields.path)


def gguf_template(fields: Fields, config: ModelConfig) -> str:
    """How a query and a document are put together; raises ModelFileError where the file does not say."""
    if not config.score_tokens:
        return ""
    stated = fields.text(TEMPLATE, "")
    if [stated.count(each) for each in (QUERY, DOCUMENT)] != [1, 1] or stated.find(QUERY) > stated.find(DOCUMENT):
        raise fields.error(f"{TEMPLATE} must hold {QUERY}, and {DOCUMENT} behind it")
    return stated
