"""From a body's bytes to its fields. What is wrong with them is a FieldError, with the field's path."""

from __future__ import annotations

import gc
import re
from typing import Any, TypeVar

import msgspec

from polyfleet.gateway.http.bodies import (
    NOTHING,
    NULL,
    UNSUPPORTED,
    Inputs,
    MessageBody,
    Messages,
    Strict,
    TokenIds,
    Tools,
)
from polyfleet.gateway.http.choices import INVALID, choices
from polyfleet.wire.limits import FieldError, check_count

MOST_COLONS = 20_000  # of what is looked through for nulls: so many fields take 10 ms
LONGEST_SHOWN = 60  # characters of a value that is none of those which are possible
LONGEST_NEUTRAL_BYTES = 1024  # of what asks for nothing, however it is laid out
UNKNOWN = "is not a field of this request"
STORED = ("conversation", "previous_response_id")  # fields that go on from what a server has kept
STATELESS = "send the conversation with each request"
SHAPE_PROBLEMS = {  # how msgspec begins, and what we say of the field
    "Object missing required field ": "is missing",
    "Object contains unknown field ": UNKNOWN,
}
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


def decode_tools(value: Tools, most: int) -> tuple[str, ...]:
    """The JSON of each of up to `most` tools. Raises FieldError."""
    if bytes(value) == NULL:
        return ()
    tools = _read(bytes(value), list[msgspec.Raw], "tools")
    check_count("tools", len(tools), most)
    return tuple(bytes(tool).decode() for tool in tools)


def decode_part(value: msgspec.Raw, kind: type[ReadT], field: str) -> ReadT:
    """A field that was left as JSON, as `kind`. Raises FieldError."""
    return _read(bytes(value), kind, field)


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
        raise _field_error(str(error), field, kind) from None
    except RecursionError:
        raise FieldError("", "the body is nested too deeply to be read") from None
    except ValueError as error:  # as msgspec.DecodeError is
        raise FieldError("", f"the body is no valid JSON ({error})") from None
    finally:
        gc.enable()


def refuse_unsupported(body: msgspec.Struct, prefix: str = "") -> None:
    """Raise FieldError for a field that asks for something that is not supported; its name gets `prefix`."""
    for name, neutral in UNSUPPORTED.items():
        value = getattr(body, name, NOTHING)
        if isinstance(value, msgspec.Raw) and not _is_one_of(value, neutral):
            instead = f", which keeps no responses: {STATELESS}" if name in STORED else "; leave it out"
            raise FieldError(f"{prefix}{name}", f"is not supported by this server{instead}")


def _is_one_of(value: msgspec.Raw, neutral: tuple[Any, ...]) -> bool:
    """Whether the JSON means null or one of these; what can't be read (1e999, a thousand brackets) means none."""
    try:
        return len(value) <= LONGEST_NEUTRAL_BYTES and msgspec.json.decode(value) in (None, *neutral)
    except (ValueError, RecursionError):
        return False


def _field_error(message: str, field: str, kind: Any) -> FieldError:
    """msgspec's message on a `kind` as path, behind `field`, and problem.

    The latter names a missing or unknown field, or the values of which one has to be there.
    """
    message = message.replace(" - at `key` in `$", " as a key - at `$")
    problem, _, path = message.partition(" - at `$")
    if (invalid := INVALID.fullmatch(problem)) and (known := choices(kind, path.rstrip("`"))):
        several = "one of " if len(known) > 1 else ""
        problem = f"must be {several}{', '.join(known)}, not {invalid[1]:.{LONGEST_SHOWN}}"
    path = field + path.rstrip("`") if field else path.rstrip("`").lstrip(".")
    for opening, said in SHAPE_PROBLEMS.items():
        if problem.startswith(opening):
            name = problem.removeprefix(opening).strip("`")
            return FieldError(f"{path}.{name}" if path else name, said)
    return FieldError(path, problem[:1].lower() + problem[1:])
