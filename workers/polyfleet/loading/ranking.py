"""Decoders that rank documents: how likely they say yes, or how little no, behind a query and a document."""

from dataclasses import replace
from typing import Any

from polyfleet.models.config import ModelConfig
from polyfleet.models.errors import ModelFileError
from polyfleet.wire.requests import Pooling

ARCHITECTURES = ("qwen3", "qwen2", "llama", "mistral")  # whose logits are those of a linear alone
ANSWERS = ("yes", "no")
QUERY, DOCUMENT = "{query}", "{document}"


def ranking(config: ModelConfig, score_tokens: tuple[int, ...], where: str, *, bounded: bool = True) -> ModelConfig:
    """The model as one that ranks by these tokens' logits; raises ModelFileError, which names the file `where`."""
    if config.architecture not in ARCHITECTURES:
        raise ModelFileError(f"{where}: models that rank by their logits are supported of {', '.join(ARCHITECTURES)}")
    if not score_tokens or not all(0 <= each < config.vocabulary_size for each in score_tokens):
        raise ModelFileError(f"{where}: it ranks by the tokens {list(score_tokens)}, of which one is not there")
    told: dict[str, Any] = {"pooling": Pooling.LAST, "normalized": False, "embeds_only": True, "cross_encoder": True}
    return replace(config, score_tokens=score_tokens, bounded=bounded, **told)
