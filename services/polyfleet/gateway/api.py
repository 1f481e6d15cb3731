"""What gRPC and HTTP ask of the gateway's core and what it answers: frozen requests, deltas, and `GenerationApi`.

The meanings and limits of the fields stand in `polyfleet/v1/inference.proto`; `validation.py` checks them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, unique
from typing import NamedTuple, Protocol

from polyfleet.wire.sampling import SamplingParams
from polyfleet.wire.tracing import TraceContext


@unique
class FinishReason(str, Enum):
    """Why a choice ended."""

    STOP = "stop"
    LENGTH = "length"


@unique
class Pooling(str, Enum):
    """How the hidden states of an input become one vector."""

    MEAN = "mean"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat; a content of several texts came in parts."""

    role: str
    content: str | tuple[str, ...]
    name: str = ""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A prompt (exactly one of text, messages, token_ids) and how to continue it.

    None means absent. `seed` replaces `sampling.seed`; without one the gateway draws it. `left_out` names the fields of
    `sampling` that the client did not state: the model's own defaults hold for them, where it has any.
    `continuous_usage`: every delta carries usage, so far.
    """

    model: str = ""
    text: str | None = None
    messages: tuple[Message, ...] = ()
    token_ids: tuple[int, ...] = ()
    sampling: SamplingParams = field(default_factory=SamplingParams)
    left_out: frozenset[str] = field(default=frozenset(), compare=False)  # requests that ask for the same are equal
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    n: int = 1
    logprobs: int | None = None
    priority: int = 0
    request_id: str = ""
    continuous_usage: bool = False


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token with the natural log of its probability; `top` holds the likeliest alternatives, likeliest first.

    `partial` are the token's bytes where they are no whole characters, so that `text` has U+FFFD; else it is empty.
    """

    token_id: int
    text: str
    logprob: float
    top: tuple[TokenLogprob, ...] = ()
    partial: bytes = b""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request; `cached_tokens` is the part of the prompt that was not computed."""

    prompt_tokens: int
    cached_tokens: int = 0
    completion_tokens: int = 0


class Delta(NamedTuple):
    """One increment of one choice. A named tuple: one is made per token.

    `request_id` is set in the first delta of a stream; `worker_id` in the first of each choice and after each move;
    `finish_reason` in the last of each choice; `usage` in the last of the stream, or in all with `continuous_usage`.
    """

    choice: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    request_id: str = ""
    worker_id: str = ""
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class EmbedInput:
    """Exactly one of text and token_ids."""

    text: str | None = None
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class EmbedRequest:
    """1 to 64 inputs, one vector each; `normalize` scales each to Euclidean length 1."""

    model: str = ""
    inputs: tuple[EmbedInput, ...] = ()
    pooling: Pooling = Pooling.MEAN
    normalize: bool = False
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class EmbedResult:
    """Vectors in the order of the inputs."""

    vectors: tuple[tuple[float, ...], ...]
    usage: Usage


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    """Exactly one of text and messages; `add_special_tokens` counts for text only."""

    model: str = ""
    text: str | None = None
    messages: tuple[Message, ...] = ()
    add_special_tokens: bool = True


@dataclass(frozen=True, slots=True)
class TokenizeResult:
    """Ids and, parallel to them, the pieces as the vocabulary spells them."""

    token_ids: tuple[int, ...]
    pieces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Model:
    """A served model. `context_length` is the largest that a ready worker offers (0: none has said so yet).

    `sampling_defaults` are those of its files that requests get here, by field of SamplingParams.
    """

    name: str
    context_length: int = 0
    vocabulary_size: int = 0
    ready_workers: int = 0
    accelerators: tuple[str, ...] = ()
    created_unix_seconds: int = 0
    reason: str = ""  # why no worker is ready
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Call:
    """What is known of a call beside its request.

    `method` is the label in metrics and logs (`Generate`, `chat.completions`, …), `key_id` names the caller's key and
    `tenant` whom it belongs to (both empty without keys), `timeout` is in seconds from now (None: the gateway's own
    limit alone), `trace` the caller's. `admitted` is called once nothing is wrong with the request itself, and it runs
    or waits for a worker.
    """

    method: str
    key_id: str = ""
    timeout: float | None = None
    tenant: str = ""
    trace: TraceContext | None = None
    admitted: Callable[[], None] = field(default=lambda: None, compare=False, repr=False)


class GenerationApi(Protocol):
    """The gateway's core, as both protocols use it. Every method raises `errors.ApiError` and nothing else."""

    def generate(self, request: GenerateRequest, call: Call) -> AsyncGenerator[Delta, None]:
        """The deltas of all choices as they come. Iterate inside `contextlib.aclosing`: closing cancels the request.

        Errors that are found before anything runs are raised by the first `anext`; later ones break the stream.
        """
        ...

    async def embed(self, request: EmbedRequest, call: Call) -> EmbedResult:
        """One vector per input."""
        ...

    async def tokenize(self, request: TokenizeRequest, call: Call) -> TokenizeResult:
        """The ids that `generate` would compute for this prompt."""
        ...

    def models(self) -> tuple[Model, ...]:
        """Every model that is served or being loaded, by name."""
        ...

    def model(self, name: str) -> Model:
        """The model of that name. Raises NotFound, which lists those that there are."""
        ...
