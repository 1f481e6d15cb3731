"""What an answer has to be, in the ways in which OpenAI's clients and those of other servers say it."""

from collections.abc import Iterator
from typing import Any

import msgspec

from polyfleet.gateway.http.bodies import NOTHING, NULL, GenerateBody
from polyfleet.gateway.http.decoding import decode_part
from polyfleet.wire.limits import FieldError
from polyfleet.wire.structure import Structure


class SchemaFormat(msgspec.Struct, frozen=True):
    """`json_schema` of a response format; its name and description, and whether it is strict, change nothing."""

    schema: msgspec.Raw = NOTHING


class ResponseFormat(msgspec.Struct, frozen=True):
    """`response_format`; some servers' `json_object` may have a schema, too."""

    type: str
    json_schema: SchemaFormat | None = None
    schema: msgspec.Raw = NOTHING


class StructuredOutputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`structured_outputs`, and, one by one, `guided_json` and so on."""

    json: msgspec.Raw = msgspec.Raw(NULL)  # a schema, or one as text
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


def read(body: GenerateBody, response_format: msgspec.Raw = NOTHING) -> Structure | None:
    """The structure that a body asks for, if any. Raises FieldError, also for more than one."""
    found = list(_found(body, response_format))
    if len(found) > 1:
        raise FieldError(found[1][0], f"can't be given beside {found[0][0]}")
    return found[0][1] if found else None


def field_of(body: GenerateBody) -> str:
    """By what field a body asks for a structure, where it does so soundly."""
    return next((field for field, _ in _found(body, NOTHING)), "response_format")


def _found(body: GenerateBody, response_format: msgspec.Raw) -> Iterator[tuple[str, Structure]]:
    if bytes(response_format) != NULL and (asked := _of_format(response_format)):
        yield "response_format", asked
    if bytes(body.structured_outputs) != NULL:
        outputs = decode_part(body.structured_outputs, StructuredOutputs, "structured_outputs")
        for name in outputs.__struct_fields__:
            if asked := _of_output(name, getattr(outputs, name), f"structured_outputs.{name}"):
                yield f"structured_outputs.{name}", asked
    for name in ("json", "regex", "choice", "grammar"):
        if asked := _of_output(name, getattr(body, f"guided_{name}"), f"guided_{name}"):
            yield f"guided_{name}", asked


def _of_format(value: msgspec.Raw) -> Structure | None:
    form = decode_part(value, ResponseFormat, "response_format")
    if form.type == "json_schema":
        schema = form.json_schema.schema if form.json_schema else NOTHING
        return of_type(form.type, schema, "response_format", "response_format.json_schema.schema")
    return of_type(form.type, form.schema, "response_format", "response_format.schema")


def of_type(kind: str, schema: msgspec.Raw, field: str, schema_field: str) -> Structure | None:
    """The structure of a format: text, json_object, or json_schema with its schema. Raises FieldError."""
    if kind == "text":
        return None
    if kind not in ("json_object", "json_schema"):
        raise FieldError(f"{field}.type", f"must be text, json_object or json_schema, not {kind!r:.40}")
    if bytes(schema) != NULL:
        return _schema(schema, schema_field)
    if kind == "json_schema":
        raise FieldError(schema_field, "is missing")
    return Structure(json_object=True)


def _of_output(name: str, value: Any, field: str) -> Structure | None:
    if name == "json":
        return None if bytes(value) == NULL else _schema(value, field)
    if value is None or value is False:
        return None
    if name == "choice" and not value:
        raise FieldError(field, "must hold at least one text")
    return Structure(**{"choices": tuple(value)} if name == "choice" else {name: value})


def _schema(value: msgspec.Raw, field: str) -> Structure:
    """A schema, as it is or as text."""
    if bytes(value)[:1] == b'"':
        return Structure(json_schema=decode_part(value, str, field))
    return Structure(json_schema=bytes(value).decode())
