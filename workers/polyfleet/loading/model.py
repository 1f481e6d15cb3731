"""What loading gives: configuration, weights and tokenizer assets of one model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from polyfleet.kernels.weights.weight import WeightFormat, Weights
from polyfleet.models.config import ModelConfig
from polyfleet.models.errors import ModelFileError as ModelFileError
from polyfleet.models.vision import VisionConfig


@dataclass(frozen=True, slots=True)
class TokenizerAssets:
    """Everything that text needs, as one canonical JSON document (see docs/models.md) and its sha256 in hex.

    Keys: `tokenizer` (a `tokenizers` JSON object), `chat_template` (str or null), `bos_token`, `eos_token` (str or
    null), `add_bos` (bool), `end_token_ids` (list of int), `special_tokens` (object of str, or of list of str),
    `sampling_defaults` (object of numbers); `tool_template` (str) where chats with tools have a template of their own;
    `images` (ImageSettings) of a model that sees.
    """

    hash: str
    document: bytes


ImageSettings = Mapping[str, int | str | bool]  # see docs/models.md


@dataclass(frozen=True, slots=True)
class VisionPart:
    """What sees images: a tower and a connector, whose weights have the names of their graphs."""

    config: VisionConfig
    settings: ImageSettings
    weights: Weights


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in host memory (weights may be memory-mapped). `tokenizer` is None for a folder that has none.

    Weight names are the graph's: `embedding`, `layers.{i}.{attention_norm,q,k,v,o,mlp_norm,gate,up,down}`, biases as
    `layers.{i}.q.bias`, `norm`, `lm_head` (absent when tied). q and k rows are in half-split rope order.
    """

    path: str
    config: ModelConfig
    weights: Weights
    tokenizer: TokenizerAssets | None
    vision: VisionPart | None = None


OF_FOLDERS = (WeightFormat.INT4, WeightFormat.INT8, WeightFormat.FP8)  # which lie in memory, not in a mapped file


def without_blocks(model: LoadedModel) -> LoadedModel:
    """The model, whose executor has made its own of all that it reads: what was in memory for that is let go.

    Whoever holds the same weights loses the data of these, too, so that the memory is free.
    """
    spent = spending(model)
    if spent is not None:
        for name in model.weights:
            spent(name)
    return model


def spending(model: LoadedModel) -> Callable[[str], None] | None:
    """The same of one weight after the other; None where they are not the model's alone."""
    weights = model.weights
    if not isinstance(weights, dict):
        return None

    def spent(name: str) -> None:
        weight = weights[name]
        if weight.format in OF_FOLDERS:
            weights[name] = replace(weight, data=torch.empty(0, dtype=torch.uint8))

    return spent
