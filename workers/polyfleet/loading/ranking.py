"""Decoders that rank documents: how likely they say yes, or how little no, behind a query and a document."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from polyfleet.loading.gguf_vocabulary import PREFIX
from polyfleet.loading.sources import model_name
from polyfleet.loading.tokenizer_parts import read_vocabulary
from polyfleet.models.config import ModelConfig
from polyfleet.models.errors import ModelFileError
from polyfleet.models.fields import Fields, read_json
from polyfleet.wire.requests import Pooling

ARCHITECTURES = ("qwen3", "qwen2", "llama", "mistral")  # whose logits are those of a linear alone
RERANKER = "qwen3-reranker"  # in the names of its folders
GGUF_TEMPLATE = "tokenizer.chat_template.rerank"
ANSWERS = ("yes", "no")
QUERY, DOCUMENT = "{query}", "{document}"
# Qwen3-Reranker's, of its model card and of GGUF files of it
TEMPLATE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
    f"<Query>: {QUERY}\n<Document>: {DOCUMENT}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


def ranking(config: ModelConfig, score_tokens: tuple[int, ...], where: str, *, bounded: bool = True) -> ModelConfig:
    """The model as one that ranks by these tokens' logits; raises ModelFileError, which names the file `where`."""
    if config.architecture not in ARCHITECTURES:
        raise ModelFileError(f"{where}: models that rank by their logits are supported of {', '.join(ARCHITECTURES)}")
    if not score_tokens or not all(0 <= each < config.vocabulary_size for each in score_tokens):
        raise ModelFileError(f"{where}: it ranks by the tokens {list(score_tokens)}, of which one is not there")
    told: dict[str, Any] = {"pooling": Pooling.LAST, "normalized": False, "embeds_only": True, "cross_encoder": True}
    return replace(config, score_tokens=score_tokens, bounded=bounded, **told)


def ranking_by_name(folder: Path, config: ModelConfig) -> ModelConfig:
    """Older folders of Qwen3-Reranker are those of a language model but for their name."""
    path = folder / "tokenizer.json"
    if config.score_tokens or RERANKER not in model_name(str(folder.resolve())).lower() or not path.is_file():
        return config
    ids = read_vocabulary(read_json(path))
    return ranking(config, tuple(ids[each] for each in ANSWERS if each in ids), str(folder))


def gguf_ranking(fields: Fields, rows: int, config: ModelConfig) -> ModelConfig:
    """The same of a GGUF file, whose `cls.output.weight` has so many rows, one for each label; 0: it has none."""
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
    stated = fields.text(GGUF_TEMPLATE, "")
    if [stated.count(each) for each in (QUERY, DOCUMENT)] != [1, 1] or stated.find(QUERY) > stated.find(DOCUMENT):
        raise fields.error(f"{GGUF_TEMPLATE} must hold {QUERY}, and {DOCUMENT} behind it")
    return stated


def template_of(config: ModelConfig, ids: Mapping[str, int], where: str) -> str:
    """The same of a folder, where the answers are Qwen3-Reranker's."""
    if not config.score_tokens:
        return ""
    if config.architecture != "qwen3" or config.score_tokens != tuple(map(ids.get, ANSWERS)):
        raise ModelFileError(f"{where}: how it reads a query and a document together is known of Qwen3-Reranker alone")
    return TEMPLATE
