"""What is asked: requests of the public API, and the sequences that the gateway makes of them for its workers.

Fields mean what those of `inference.proto` and `worker.proto` do; `polyfleet.convert` goes between. None means absent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from enum import Enum, unique
from typing import Any, TypedDict

from polyfleet.wire.images import Image, SequenceImage
from polyfleet.wire.limits import (
    CONTEXT_LENGTH_EXCEEDED,
    MAX_LOGIT_BIAS,
    MAX_LOGIT_BIASES,
    MAX_PRIORITY,
    MAX_TOP_LOGPROBS,
    FieldError,
    check_count,
    check_range,
    shown,
)
from polyfleet.wire.sampling import GREEDY, SamplingParams
from polyfleet.wire.structure import Structure
from polyfleet.wire.tickets import PrefixSource
from polyfleet.wire.tools import ToolCall


@unique
class Pooling(str, Enum):
    """How the hidden states of an input become one vector."""

    MEAN = "mean"  # of all tokens'
    LAST = "last"  # the last token's
    CLS = "cls"  # the first token's


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """How far to go on and what to tell: the same in a request, in its sequences and in the engine."""

    max_tokens: int | None = None  # generated tokens in all; None: as many as there is room for
    min_tokens: int = 0  # generated tokens in all, before which neither a token nor a stop string ends it
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # by token id, what is added to its logit
    logprobs: int | None = None  # alternatives beside each token; None: no logprobs
    prompt_logprobs: int | None = None  # the same of the prompt's tokens
    priority: int = 0  # higher first
    request_id: str = ""

    @property
    def needed_room(self) -> int:
        """Tokens that there must be room for behind the prompt."""
        return max(1, self.min_tokens) if self.max_tokens is None else self.max_tokens

    def check(self, *, least: int = 1) -> None:
        """Raise FieldError for the first value out of range, whatever the model and prompt; `least` of max_tokens."""
        if self.max_tokens is not None and self.max_tokens < least:
            raise FieldError("max_tokens", f"must be {least} or more, not {shown(self.max_tokens)}")
        if self.min_tokens < 0:
            raise FieldError("min_tokens", f"must be 0 or more, not {shown(self.min_tokens)}")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            most = shown(self.max_tokens)
            raise FieldError("min_tokens", f"must be at most max_tokens, which is {most}, not {shown(self.min_tokens)}")
        check_range("priority", self.priority, -MAX_PRIORITY, MAX_PRIORITY)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                check_range(name, getattr(self, name), 0, MAX_TOP_LOGPROBS)
        check_count("logit_bias", len(self.logit_bias), MAX_LOGIT_BIASES)
        for token_id, bias in self.logit_bias.items():
            check_range(f"logit_bias[{shown(token_id)}]", bias, -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS)

    def check_room(self, room: int, why: str) -> None:
        """Raise FieldError, which says `why`, where more tokens are asked for than there is room behind the prompt."""
        for name, wanted in (("max_tokens", self.max_tokens or 0), ("min_tokens", self.min_tokens)):
            if wanted > room:
                raise FieldError(name, f"must be at most {room}, not {shown(wanted)}: {why}", CONTEXT_LENGTH_EXCEEDED)

    def shared(self) -> dict[str, Any]:
        """These fields by name, for the next one of this kind."""
        return {each.name: getattr(self, each.name) for each in fields(Continuation)}


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat. `role` is system, user, assistant or tool; a content of several texts or with images came
    in parts.

    None is the content of one that calls tools alone. `tool_call_id` says which call a tool's message answers.
    """

    role: str
    content: str | tuple[str | Image, ...] | None
    name: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    reasoning: str = ""

    @property
    def texts(self) -> tuple[str, ...]:
        """What its content says."""
        return tuple(part for part in self.parts if isinstance(part, str))

    @property
    def images(self) -> tuple[Image, ...]:
        """What its content shows."""
        return tuple(part for part in self.parts if isinstance(part, Image))

    @property
    def parts(self) -> tuple[str | Image, ...]:
        """Its content, part by part."""
        return (self.content,) if isinstance(self.content, str) else self.content or ()

    @property
    def without_data(self) -> Message:
        """The same, with nothing but the places of its images."""
        if not self.images:
            return self
        return replace(self, content=tuple(Image() if isinstance(part, Image) else part for part in self.parts))


@dataclass(frozen=True, slots=True)
class Chat:
    """What a chat's prompt is made of. `tools` and `arguments` (of the template) are JSON, as in GenerateRequest."""

    messages: tuple[Message, ...]
    tools: tuple[str, ...] = ()
    arguments: str = ""

    @property
    def images(self) -> tuple[tuple[str, Image], ...]:
        """Every image with its place, as in `messages[0].parts[1]`."""
        return tuple(
            (f"messages[{number}].parts[{index}]", part)
            for number, message in enumerate(self.messages)
            for index, part in enumerate(message.parts)
            if isinstance(part, Image)
        )

    @property
    def without_data(self) -> Chat:
        """The same, with nothing but the places of its images."""
        return replace(self, messages=tuple(each.without_data for each in self.messages))


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest(Continuation):
    """A prompt (exactly one of text, messages, token_ids) and how to continue it.

    `seed` replaces `sampling.seed`; without one the gateway draws it. `left_out` names the fields of `sampling` that
    the client did not state: the model's own defaults hold for them, where it has any. `continuous_usage`: every delta
    carries usage, so far.
    """

    model: str = ""
    text: str | None = None
    messages: tuple[Message, ...] = ()
    token_ids: tuple[int, ...] = ()
    sampling: SamplingParams = field(default_factory=SamplingParams)
    left_out: frozenset[str] = field(default=frozenset(), compare=False)  # requests that ask for the same are equal
    seed: int | None = None
    stop: tuple[str, ...] = ()
    n: int = 1
    continuous_usage: bool = False
    tools: tuple[str, ...] = ()  # each one's JSON
    tool_choice: str = ""  # of `polyfleet.wire.tools`; empty: auto
    tool_names: tuple[str, ...] = ()
    parallel_tool_calls: bool = True
    template_arguments: str = ""
    structure: Structure | None = None
    echo: bool = False

    @property
    def chat(self) -> Chat:
        """The messages with what the model is told of tools."""
        return Chat(self.messages, () if self.tool_choice == "none" else self.tools, self.template_arguments)


class GenerateOptions(TypedDict, total=False):
    """Keyword arguments of the client's `generate`, `stream` and `chat`. What is left out, or None, is the gateway's.

    Ranges and meanings stand in `docs/api.md`. `timeout` is the client's own: seconds until the call is given up.
    """

    model: str
    max_tokens: int | None
    min_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    seed: int | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    logit_bias: Mapping[int, float] | None
    n: int | None
    logprobs: int | None
    prompt_logprobs: int | None
    priority: int | None
    request_id: str
    tools: Sequence[Mapping[str, Any]]
    tool_choice: str
    tool_names: Sequence[str]
    parallel_tool_calls: bool | None
    template_arguments: Mapping[str, Any]
    json_schema: Mapping[str, Any] | str | None
    json_object: bool
    regex: str | None
    grammar: str | None
    choices: Sequence[str]
    echo: bool
    timeout: float | None


@dataclass(frozen=True, slots=True)
class SequenceRequest(Continuation):
    """One continuation to compute. `generated_ids` were produced elsewhere already; computing goes on behind them."""

    sequence_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams = GREEDY
    _: KW_ONLY
    generated_ids: tuple[int, ...] = ()  # `max_tokens` counts them
    choice: int = 0  # draws are keyed by (seed, choice)
    pooling: Pooling | None = None  # set: an embedding of the prompt is wanted, no token
    cache_salt: bytes = b""  # cached prefixes are shared by requests of one salt alone
    traceparent: str = ""  # W3C Trace Context of the request, for logs
    tracestate: str = ""
    grammar: str = ""  # of all generated tokens, as llguidance writes it
    adapter: str = ""  # fingerprint of the adapter that it is computed with; empty: none
    segment_start: int = 0  # where the prompt's second segment begins, a cross encoder's document; 0: it has none
    images: tuple[SequenceImage, ...] = ()  # in the order in which the prompt's tokens stand for them
    prefix_source: PrefixSource | None = None  # where the beginning of its prompt may be fetched


@dataclass(frozen=True, slots=True)
class EmbedInput:
    """Exactly one of text and token_ids."""

    text: str | None = None
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class EmbedRequest:
    """1 to 64 inputs, one vector each: its first `dimensions` (0: all), which `normalize` scales to length 1."""

    model: str = ""
    inputs: tuple[EmbedInput, ...] = ()
    pooling: Pooling | None = None  # None: the model's own, MEAN where its files state none
    normalize: bool = False
    dimensions: int = 0
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class RerankRequest:
    """1 to 1000 documents, of which the `top_n` (0: all) are wanted that answer the query best.

    At most `max_tokens_per_doc` (0: any number) of each are read, and what the model's context holds.
    """

    model: str = ""
    query: str = ""
    documents: tuple[str, ...] = ()
    top_n: int = 0
    max_tokens_per_doc: int = 0
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class DetokenizeRequest:
    """Ids to be spelled."""

    model: str = ""
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    """Exactly one of text and messages; `add_special_tokens` counts for text only."""

    model: str = ""
    text: str | None = None
    messages: tuple[Message, ...] = ()
    add_special_tokens: bool = True
    tools: tuple[str, ...] = ()
    template_arguments: str = ""

    @property
    def chat(self) -> Chat:
        """See GenerateRequest."""
        return Chat(self.messages, self.tools, self.template_arguments)
