"""What the client gives back: frozen dataclasses, built from the public API's messages by their `from_proto`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from polyfleet.v1 import inference_pb2 as pb

# FinishReason as a string: "stop" (a stop string, stop id or end token) or "length" (max_tokens or context length).
_FINISH_REASONS: Mapping[int, str] = {pb.FINISH_REASON_STOP: "stop", pb.FINISH_REASON_LENGTH: "length"}


def _finish_reason(value: int) -> str | None:
    """None while it goes on; `unknown` for a reason of a newer gateway."""
    return _FINISH_REASONS.get(value, "unknown") if value else None


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat. `role` is system, user, assistant or tool; `name` is optional."""

    role: str
    content: str
    name: str = ""


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

    @classmethod
    def from_proto(cls, message: pb.TokenLogprobs) -> TokenLogprobs:
        """Build from the wire."""
        top = tuple(map(cls.from_proto, message.top))
        return cls(message.token_id, message.text, message.logprob, top, message.partial)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request, all choices together; `cached_tokens` is the part of the prompt that was not computed."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens

    @classmethod
    def from_proto(cls, message: pb.Usage) -> Usage:
        """Build from the wire."""
        return cls(message.prompt_tokens, message.cached_tokens, message.completion_tokens)


@dataclass(frozen=True, slots=True)
class Delta:
    """One increment of one choice; a choice's last one carries `finish_reason`, the stream's last one `usage`."""

    choice: int
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: str | None = None
    usage: Usage | None = None

    @classmethod
    def from_proto(cls, message: pb.GenerateResponse) -> Delta:
        """Build from the wire."""
        return cls(
            choice=message.choice,
            text=message.text,
            token_ids=tuple(message.token_ids),
            logprobs=tuple(map(TokenLogprobs.from_proto, message.logprobs)),
            finish_reason=_finish_reason(message.finish_reason),
            usage=Usage.from_proto(message.usage) if message.HasField("usage") else None,
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """One whole continuation. `finish_reason` is None only where a stream was read half."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: str | None


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer. `worker_ids` names the workers that computed it, in order (more than one when it moved)."""

    request_id: str
    worker_ids: tuple[str, ...]
    choices: tuple[Choice, ...]
    usage: Usage | None

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Token ids of the first choice."""
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> str | None:
        """Finish reason of the first choice."""
        return self.choices[0].finish_reason


@dataclass(frozen=True, slots=True)
class Embeddings:
    """One vector of hidden-size floats per input, in the order of the inputs."""

    vectors: tuple[tuple[float, ...], ...]
    usage: Usage

    @classmethod
    def from_proto(cls, message: pb.EmbedResponse) -> Embeddings:
        """Build from the wire."""
        return cls(tuple(tuple(e.values) for e in message.embeddings), Usage.from_proto(message.usage))


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token ids and, parallel to them, the pieces as the vocabulary spells them."""

    token_ids: tuple[int, ...]
    pieces: tuple[str, ...]

    @classmethod
    def from_proto(cls, message: pb.TokenizeResponse) -> Tokens:
        """Build from the wire."""
        return cls(tuple(message.token_ids), tuple(message.pieces))


@dataclass(frozen=True, slots=True)
class Model:
    """A served model; `context_length` counts prompt and output tokens together.

    `sampling_defaults` (temperature, top_p, …) are its own, which hold for what a request leaves out.
    `reason`: why no worker is ready, how far loading is for one; empty while one is.
    """

    name: str
    context_length: int
    vocabulary_size: int
    ready_workers: int
    accelerators: tuple[str, ...]
    created_unix_seconds: int
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""

    @classmethod
    def from_proto(cls, message: pb.Model) -> Model:
        """Build from the wire."""
        return cls(
            message.name,
            message.context_length,
            message.vocabulary_size,
            message.ready_workers,
            tuple(message.accelerators),
            message.created_unix_seconds,
            {field.name: value for field, value in message.sampling_defaults.ListFields()},
            message.reason,
        )
