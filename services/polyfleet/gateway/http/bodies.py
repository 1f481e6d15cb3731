"""Request bodies of the OpenAI endpoints: every field they define, and our extensions. Unknown fields are refused,
unless they are null.

Three kinds of fields: those that work; those that are accepted and change nothing (they don't change the result, or
only speak of OpenAI's own service); and those that would change the result but are not supported, which
`refuse_unsupported` finds unless their value asks for nothing. docs/api.md lists all three.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import msgspec

from polyfleet.wire.limits import FieldError, check_count

# What isn't looked into stays JSON: made into objects, 4 MB of `[[],[],…` would hold the event loop for half a second.
Ignored = msgspec.Raw
Unsupported = msgspec.Raw
TokenIds = list[int]
Messages = msgspec.Raw  # list[MessageBody]: `decode_messages`
Inputs = msgspec.Raw  # a text, token ids, or several of either: `decode_inputs`
NULL = b"null"
NOTHING = msgspec.Raw(NULL)
MOST_COLONS = 20_000  # of what is looked through for nulls: so many fields take 10 ms
LONGEST_NEUTRAL_BYTES = 1024  # of what asks for nothing, however it is laid out

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


UNKNOWN = "is not a field of this request"
SHAPE_PROBLEMS = {  # how msgspec begins, and what we say of the field
    "Object missing required field ": "is missing",
    "Object contains unknown field ": UNKNOWN,
}


class Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all bodies."""


class StreamOptions(Strict, frozen=True, kw_only=True):
    """`stream_options`; obfuscation is padding against eavesdroppers that we leave to TLS.

    `continuous_usage_stats` is an extension: with usage in a chunk of its own, each other chunk tells it too, so far.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Ignored = NOTHING


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
    min_tokens: int | None = None
    stop_token_ids: TokenIds | None = None
    priority: int | None = None
    # Without effect.
    user: Ignored = NOTHING
    # Not supported.
    logit_bias: Unsupported = NOTHING


class ContentPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a message's content; only type `text` is supported, so the other types' fields are not looked at."""

    type: str
    text: str | None = None


class MessageBody(Strict, frozen=True, kw_only=True):
    """One turn, also as an answer of this or another server comes back with it.

    `tool_calls`, `function_call` and `audio` belong to features that are not supported.
    """

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    # Without effect.
    tool_call_id: Ignored = NOTHING
    annotations: Ignored = NOTHING
    refusal: Ignored = NOTHING
    reasoning: Ignored = NOTHING
    reasoning_content: Ignored = NOTHING
    reasoning_details: Ignored = NOTHING
    thinking_blocks: Ignored = NOTHING
    provider_specific_fields: Ignored = NOTHING
    # Not supported.
    audio: Unsupported = NOTHING
    tool_calls: Unsupported = NOTHING
    function_call: Unsupported = NOTHING


class ChatBody(GenerateBody, frozen=True, kw_only=True):
    """Body of `POST /v1/chat/completions`."""

    messages: Messages
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    # Without effect.
    metadata: Ignored = NOTHING
    parallel_tool_calls: Ignored = NOTHING
    prediction: Ignored = NOTHING
    prompt_cache_key: Ignored = NOTHING
    prompt_cache_options: Ignored = NOTHING
    prompt_cache_retention: Ignored = NOTHING
    safety_identifier: Ignored = NOTHING
    service_tier: Ignored = NOTHING
    # Not supported.
    audio: Unsupported = NOTHING
    function_call: Unsupported = NOTHING
    functions: Unsupported = NOTHING
    modalities: Unsupported = NOTHING
    moderation: Unsupported = NOTHING
    reasoning_effort: Unsupported = NOTHING
    response_format: Unsupported = NOTHING
    store: Unsupported = NOTHING
    tool_choice: Unsupported = NOTHING
    tools: Unsupported = NOTHING
    verbosity: Unsupported = NOTHING
    web_search_options: Unsupported = NOTHING


class CompletionBody(GenerateBody, frozen=True, kw_only=True):
    """Body of `POST /v1/completions`. The prompt is a text, token ids, or several of either."""

    prompt: Inputs
    logprobs: int | None = None
    best_of: int | None = None  # supported where it equals n
    # Not supported.
    echo: Unsupported = NOTHING
    suffix: Unsupported = NOTHING


class EmbeddingsBody(Strict, frozen=True, kw_only=True):
    """Body of `POST /v1/embeddings`. `pooling` and `normalize` are extensions."""

    input: Inputs
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    pooling: Literal["mean", "last"] | None = None
    normalize: bool | None = None
    user: Ignored = NOTHING
    dimensions: Unsupported = NOTHING


BodyT = TypeVar("BodyT", bound=Strict)
ReadT = TypeVar("ReadT")
_OPENING = re.compile(rb"(\[?)\s*(.?)", re.DOTALL)  # of a list, its first item's too
_MIXED = re.compile("expected `(int|str|array)`, got `(int|str|array)`")
ANY_INPUTS = "must be a string, a list of token ids, or a list of several of one kind; no list may be empty"


def decode(body: bytes, kind: type[BodyT]) -> BodyT:
    """The body as `kind`. Raises FieldError, with the field's path (empty: the body as a whole)."""
    try:
        str(body, "utf-8")  # of which msgspec checks the texts that it makes alone
        decoded = _read_object(body, kind)
    except UnicodeDecodeError as error:
        raise FieldError("", f"the body is no valid JSON ({error})") from None
    refuse_unsupported(decoded)
    return decoded


def decode_messages(value: Messages, most: int) -> list[MessageBody]:
    """Up to `most` messages, counted before an object is made of each. Raises FieldError."""
    data = bytes(value)
    if data.count(b"{") > most:  # else there are no more; some may stand in texts
        check_count("messages", len(_read(data, list[msgspec.Raw], "messages")), most)
    try:
        return _read(data, list[MessageBody], "messages")
    except FieldError as error:
        if error.problem != UNKNOWN or data.count(b":") > MOST_COLONS:
            raise
    bodies = _read(data, list[msgspec.Raw], "messages")
    return [_read_object(bytes(body), MessageBody, f"messages[{index}]") for index, body in enumerate(bodies)]


def decode_inputs(value: Inputs, field: str, most: int) -> list[str] | list[TokenIds]:
    """OpenAI's four shapes (text, ids, list of either) as a list of up to `most`. Raises FieldError."""
    data = bytes(value)
    opening = b"".join(_OPENING.match(data).groups())  # type: ignore[union-attr]
    try:
        if opening[:1] == b'"':
            return [_read(data, str, field)]
        if opening == b'["':
            texts = _read(data, list[str], field)
            check_count(field, len(texts), most)
            return texts
        if opening == b"[[":
            check_count(field, data.count(b"[") - 1, most)  # before a list is made of each
            lists = _read(data, list[TokenIds], field)
            if all(lists):
                return lists
        elif opening[:1] == b"[" != opening and opening != b"[]":
            return [_read(data, TokenIds, field)]
    except FieldError as error:
        if not (error.field.count("[") == 1 and _MIXED.match(error.problem)):
            raise
    raise FieldError(field, ANY_INPUTS)


def _read_object(data: bytes, kind: type[ReadT], field: str = "") -> ReadT:
    """As `_read`; fields that `kind` does not know may be null, which asks for nothing."""
    try:
        return _read(data, kind, field)
    except FieldError as error:
        if error.problem != UNKNOWN or data.count(b":") > MOST_COLONS:
            raise
    return _read(_without_nulls(data, field), kind, field)


def _without_nulls(data: bytes, field: str) -> bytes:
    """An object without those of its fields that are null, nor those of its `stream_options`."""
    fields = {k: v for k, v in _read(data, dict[str, msgspec.Raw], field).items() if bytes(v) != NULL}
    if bytes(fields.get("stream_options", NOTHING))[:1] == b"{":
        fields["stream_options"] = msgspec.Raw(_without_nulls(bytes(fields["stream_options"]), "stream_options"))
    return msgspec.json.encode(fields)


def _read(data: bytes, kind: type[ReadT], field: str = "") -> ReadT:
    """The JSON as `kind`. Raises FieldError with a path that begins with `field`."""
    gc.disable()  # which would look through all of the process's objects, several times a body of many small ones
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise _field_error(str(error), field) from None
    except (ValueError, RecursionError) as error:  # msgspec.DecodeError is a ValueError
        raise FieldError("", f"the body is no valid JSON ({error})") from None
    finally:
        gc.enable()


def refuse_unsupported(body: Strict, prefix: str = "") -> None:
    """Raise FieldError for a field that asks for something that is not supported; its name gets `prefix`."""
    for name, neutral in UNSUPPORTED.items():
        value = getattr(body, name, NOTHING)
        if value is not NOTHING and not _is_one_of(value, neutral):
            raise FieldError(f"{prefix}{name}", "is not supported by this server; leave it out")


def _is_one_of(value: msgspec.Raw, neutral: tuple[Any, ...]) -> bool:
    """Whether the JSON means null or one of these; what can't be read (1e999, a thousand brackets) means none."""
    try:
        return len(value) <= LONGEST_NEUTRAL_BYTES and msgspec.json.decode(value) in (None, *neutral)
    except (ValueError, RecursionError):
        return False


def _field_error(message: str, field: str) -> FieldError:
    """msgspec's message as path, behind `field`, and problem; the latter names a missing or unknown field."""
    problem, _, path = message.partition(" - at `$")
    path = field + path.rstrip("`") if field else path.rstrip("`").lstrip(".")
    for opening, said in SHAPE_PROBLEMS.items():
        if problem.startswith(opening):
            name = problem.removeprefix(opening).strip("`")
            return FieldError(f"{path}.{name}" if path else name, said)
    return FieldError(path, problem[:1].lower() + problem[1:])
