"""Folders of decoders that rank documents: known by their name, and how a query and a document are put together."""

from collections.abc import Mapping
from pathlib import Path

from polyfleet.loading.ranking import ANSWERS, DOCUMENT, QUERY, ranking
from polyfleet.loading.sources import model_name
from polyfleet.loading.tokenizer.parts import read_vocabulary
from polyfleet.models.config import ModelConfig
from polyfleet.models.errors import ModelFileError
from polyfleet.models.fields import read_json

RERANKER = "qwen3-reranker"  # in the names of its folders
# Qwen3-Reranker's, of its model card and of GGUF files of it
TEMPLATE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
    f"<Query>: {QUERY}\n<Document>: {DOCUMENT}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


def ranking_by_name(folder: Path, config: ModelConfig) -> ModelConfig:
    """Older folders of Qwen3-Reranker are those of a language model but for their name."""
    path = folder / "tokenizer.json"
    if config.score_tokens or RERANKER not in model_name(str(folder.resolve())).lower() or not path.is_file():
        return config
    ids = read_vocabulary(read_json(path))
    return ranking(config, tuple(ids[each] for each in ANSWERS if each in ids), str(folder))


def template_of(config: ModelConfig, ids: Mapping[str, int], where: str) -> str:
    """How a query and a document are put together, where the answers are Qwen3-Reranker's."""
    if not config.score_tokens:
        return ""
    if config.architecture != "qwen3" or config.score_tokens != tuple(map(ids.get, ANSWERS)):
        raise ModelFileError(f"{where}: how it reads a query and a document together is known of Qwen3-Reranker alone")
    return TEMPLATE
