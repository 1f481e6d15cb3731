"""Request bodies of the OpenAI endpoints: every field they define, and our extensions. Unknown fields are refused.

Three kinds of fields: those that work; those that are accepted and change nothing (they don't change the result, or
only speak of OpenAI's own service); and those that would change the result but are not supported, which
`refuse_unsupported` finds unless their value asks for nothing. docs/api.md lists all three.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import msgspec

from polyfleet.wire.limits import FieldError

Ignored = Any
Unsupported = Any
TokenIds = list[int]

# The unsupported fields, each with the values (None aside) with which it asks for nothing.
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "dimensions": (),
    "echo": (False,),
    "function_call": ("auto", "none"),  # with functions refused, neither can have an effect
    "functions": ([],),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("auto", "none"),
    "tool_calls": ([],),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
}


SHAPE_PROBLEMS = {  # how msgspec begins, and what we say of the field
    "Object missing required field ": "is missing",
    "Object contains unknown field ": "is not a field of this request",
}


class Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all bodies."""


class StreamOptions(Strict, frozen=True, kw_only=True):
    """`stream_options`; obfuscation is padding against eavesdroppers that we leave to TLS."""

    include_usage: bool | None = None
    include_obfuscation: Ignored = None


class GenerateBody(Strict, frozen=True, kw_only=True):
    """What chat and text completions have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    n: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    # Extensions.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    stop_token_ids: TokenIds | None = None
    priority: int | None = None
    # Without effect.
    user: Ignored = None
    # Not supported.
    logit_bias: Unsupported = None


class ContentPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a message's content; only type `text` is supported, so the other types' fields are not looked at."""

    type: str
    text: str | None = None


class MessageBody(Strict, frozen=True, kw_only=True):
    """One turn. `tool_calls` and `function_call` belong to features that are not supported."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_call_id: Ignored = None
    refusal: Ignored = None
    audio: Unsupported = None
    tool_calls: Unsupported = None
    function_call: Unsupported = None


class ChatBody(GenerateBody, frozen=True, kw_only=True):
    """Body of `POST /v1/chat/completions`."""

    messages: list[MessageBody]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    # Without effect.
    metadata: Ignored = None
    parallel_tool_calls: Ignored = None
    prediction: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_options: Ignored = None
    prompt_cache_retention: Ignored = None
    safety_identifier: Ignored = None
    service_tier: Ignored = None
    # Not supported.
    audio: Unsupported = None
    function_call: Unsupported = None
    functions: Unsupported = None
    modalities: Unsupported = None
    moderation: Unsupported = None
    reasoning_effort: Unsupported = None
    response_format: Unsupported = None
    store: Unsupported = None
    tool_choice: Unsupported = None
    tools: Unsupported = None
    verbosity: Unsupported = None
    web_search_options: Unsupported = None


class CompletionBody(GenerateBody, frozen=True, kw_only=True):
    """Body of `POST /v1/completions`. The prompt is a text, token ids, or several of either."""

    prompt: str | list[str | int | TokenIds]
    logprobs: int | None = None
    best_of: int | None = None  # supported where it equals n
    # Not supported.
    echo: Unsupported = None
    suffix: Unsupported = None


class EmbeddingsBody(Strict, frozen=True, kw_only=True):
    """Body of `POST /v1/embeddings`. `pooling` and `normalize` are extensions."""

    input: str | list[str | int | TokenIds]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    pooling: Literal["mean", "last"] | None = None
    normalize: bool | None = None
    user: Ignored = None
    dimensions: Unsupported = None


BodyT = TypeVar("BodyT", bound=Strict)


def decode(body: bytes, kind: type[BodyT]) -> BodyT:
    """The body as `kind`. Raises FieldError, with the field's path (empty: the body as a whole)."""
    try:
        decoded = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _field_error(str(error)) from None
    except (ValueError, RecursionError) as error:  # msgspec.DecodeError and UnicodeDecodeError are ValueErrors
        raise FieldError("", f"the body is no valid JSON ({error})") from None
    refuse_unsupported(decoded)
    return decoded


def refuse_unsupported(body: Strict, prefix: str = "") -> None:
    """Raise FieldError for a field that asks for something that is not supported; its name gets `prefix`."""
    for name, neutral in UNSUPPORTED.items():
        value = getattr(body, name, None)
        if value is not None and value not in neutral:
            raise FieldError(f"{prefix}{name}", "is not supported by this server; leave it out")


def _field_error(message: str) -> FieldError:
    """msgspec's message as path and problem; it puts the name of a missing or unknown field into the problem."""
    problem, _, path = message.partition(" - at `$")
    path = path.rstrip("`").lstrip(".")
    for opening, said in SHAPE_PROBLEMS.items():
        if problem.startswith(opening):
            name = problem.removeprefix(opening).strip("`")
            return FieldError(f"{path}.{name}" if path else name, said)
    return FieldError(path, problem[:1].lower() + problem[1:])
