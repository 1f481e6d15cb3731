"""What loading gives: configuration, weights and tokenizer assets of one model."""

from dataclasses import dataclass

from polyfleet.kernels.weights import Weights
from polyfleet.models.config import ModelConfig
from polyfleet.models.errors import ModelFileError as ModelFileError


@dataclass(frozen=True, slots=True)
class TokenizerAssets:
    """Everything that text needs, as one canonical JSON document (see docs/models.md) and its sha256 in hex.

    Keys: `tokenizer` (a `tokenizers` JSON object), `chat_template` (str or null), `bos_token`, `eos_token` (str or
    null), `add_bos` (bool), `end_token_ids` (list of int), `special_tokens` (object of str, or of list of str),
    `sampling_defaults` (object of numbers); `tool_template` (str) where chats with tools have a template of their own.
    """

    hash: str
    document: bytes


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
