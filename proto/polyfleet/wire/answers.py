"""What comes back: news of a sequence from engine and worker, and what the gateway makes of them for its clients.

News of sequences, which come with every token, are no dataclasses: they are made in a fifth of these's time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, unique
from typing import NamedTuple

import msgspec

from polyfleet.wire.tools import ToolCallDelta

INVALID_ARGUMENT, INTERNAL = 3, 13  # of google.rpc.Code


@unique
class FinishReason(str, Enum):
    """Why a sequence ended well."""

    STOP = "stop"  # a stop string, a stop id or the model's end token
    LENGTH = "length"  # max_tokens or the context length
    TOOL_CALLS = "tool_calls"  # as STOP, and the answer calls tools
    UNKNOWN = "unknown"  # a reason of a newer version

    __str__ = str.__str__


class SampledToken(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A drawn token. Logprobs are natural logs of the model's own distribution, before penalties and temperature."""

    token_id: int
    logprob: float = 0.0
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


class SequenceUpdate(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """News of one sequence after a step. It has ended when `finish_reason` or `error` is set."""

    sequence_id: str
    tokens: tuple[SampledToken, ...] = ()  # stop and end tokens are not among them
    finish_reason: FinishReason | None = None
    error: str = ""
    cached_tokens: int | None = None  # with the first update: prompt tokens read from the prefix cache
    queue_seconds: float | None = None  # with the first update: from add() to the first step
    embedding: tuple[float, ...] = ()  # not normalised
    code: int = INTERNAL  # google.rpc code of `error`
    prompt_logprobs: tuple[SampledToken, ...] = ()  # with the first update, when asked for: of all tokens but the first
    broken: bool = False  # with `error`: it ran, and its worker failed; another one can go on with it


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """A token with the natural log of the model's own probability for it; `top` holds alternatives, likeliest first.

    `partial` are its bytes where it is no whole characters, so that `text` has U+FFFD; else it is empty.
    """

    token_id: int
    text: str
    logprob: float
    top: tuple[TokenLogprobs, ...] = ()
    partial: bytes = b""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request, all choices together; `cached_tokens` is the part of the prompt that was not computed.

    `reasoning_tokens` is the part of the completion that thoughts took, up to their closing tag.
    """

    prompt_tokens: int
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


class Delta(NamedTuple):
    """One increment of one choice. A named tuple: one is made per token.

    `request_id` is set in the first delta of a stream; `worker_id` in the first of each choice and after each move;
    `finish_reason` in the last of each choice; `usage` in the last of the stream, or in all with `continuous_usage`.
    What the model thinks and what it calls is not in `text`.
    """

    choice: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    request_id: str = ""
    worker_id: str = ""
    usage: Usage | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # in the first delta of each choice, when asked for
    stop_string: str = ""  # that ended the choice, if one did


Vector = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Embeddings:
    """One vector of hidden-size floats per input, in the order of the inputs."""

    vectors: tuple[Vector, ...]
    usage: Usage


@dataclass(frozen=True, slots=True)
class Ranked:
    """A document by its place in the request, and how well it answers the query: the larger, the better."""

    index: int
    relevance_score: float


@dataclass(frozen=True, slots=True)
class Ranking:
    """Documents, best first; of equal ones the first."""

    results: tuple[Ranked, ...]
    usage: Usage


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token ids and, parallel to them, the pieces as the vocabulary spells them."""

    token_ids: tuple[int, ...]
    pieces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Model:
    """A served model. `context_length` counts prompt and output together: the largest that a ready worker offers.

    `sampling_defaults` (temperature, top_p, …) are its own, which hold for what a request leaves out. `reason`: why no
    worker is ready, how far loading is for one; empty while one is.
    """

    name: str
    context_length: int = 0  # none has said so yet
    vocabulary_size: int = 0
    ready_workers: int = 0
    accelerators: tuple[str, ...] = ()
    created_unix_seconds: int = 0
    reason: str = ""
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)
    embeds_only: bool = False  # whether it makes embeddings and generates nothing
    parent: str = ""  # of an adapter: the model that it adapts
    cross_encoder: bool = False  # whether it ranks documents and makes no embeddings
    ids_only: bool = False  # whether it has no tokenizer
