"""Codec: between a dataclass and the message that has its fields, by their names: a new field needs no code here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Generic, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from polyfleet.wire.limits import FieldError

ValueT = TypeVar("ValueT")
MessageT = TypeVar("MessageT", bound=Message)
Convert = Callable[[Any], Any]


class _Field(NamedTuple):
    """One that both sides have. `read` and `write` are None where the value goes as it is."""

    name: str
    read: Convert | None
    write: Convert | None
    optional: bool  # absent in a message: the dataclass's default holds
    stated: bool  # written also where it is 0 or empty


class Codec(Generic[ValueT, MessageT]):
    """Converts the fields that `kind` (a dataclass or named tuple) and `message` have in common; looks at both once.

    Enumerations go by name: POOLING_MEAN is Pooling.MEAN, a number 0 is the dataclass's default, a number of a newer
    version UNKNOWN where the enumeration has that. Absent fields get the dataclass's defaults, but a nested dataclass
    that may not be None is read all the same. None is not written.
    """

    def __init__(self, kind: type[ValueT], message: type[MessageT]) -> None:
        self._kind = kind
        self._message = message
        known = message.DESCRIPTOR.fields_by_name
        self._defaults = _defaults(kind)
        self._fields = [self._field(known[name], hint) for name, hint in get_type_hints(kind).items() if name in known]
        self._written = [(each.name, each.write, each.stated) for each in self._fields]
        self._read = {each.name: each.read for each in self._fields}
        self._unlike = [(each.name, each.read) for each in self._fields if not each.optional and self._differs(each)]

    def value(self, message: MessageT, **given: Any) -> ValueT:
        """The dataclass; `given` are fields that are told, not read. Raises FieldError for an unknown enumerator."""
        values = given
        for field, value in message.ListFields():  # a few of many: what is not there costs nothing
            if (name := field.name) in self._read and name not in given:
                if (read := self._read[name]) is not None:
                    value = read(value)
                if value is not None:
                    values[name] = value
        for name, read in self._unlike:
            if name not in values:
                values[name] = getattr(message, name) if read is None else read(getattr(message, name))
        return self._kind(**values)

    def message(self, value: ValueT, **given: Any) -> MessageT:
        """The message; `given` are fields that are told, not taken from the dataclass."""
        values = dict(given)
        for name, write, stated in self._written:  # one of these is made per token: what is not there costs little
            item = getattr(value, name)
            if (item or (stated and item is not None)) and name not in given:
                values[name] = item if write is None else write(item)
        return self._message(**values)

    def _differs(self, field: _Field) -> bool:
        """Whether a field that is absent reads as something else than the dataclass's default."""
        absent = getattr(self._message(), field.name)
        value = absent if field.read is None else field.read(absent)
        return value is not None and (field.name not in self._defaults or self._defaults[field.name] != value)

    def _field(self, field: Any, hint: Any) -> _Field:
        """How one field, by its descriptor, is converted."""
        kind, nullable = _without_none(hint)
        repeated, optional = get_origin(kind) is tuple, field.has_presence
        read: Convert | None = None
        write: Convert | None = None
        if repeated:
            kind, read = get_args(kind)[0], tuple
        elif get_origin(kind) is Mapping:
            read = dict
        if is_dataclass(kind):
            codec: Codec[Any, Any] = self if kind is self._kind else Codec(kind, GetMessageClass(field.message_type))  # type: ignore[arg-type]
            read, write = (_each(codec.value), _each(codec.message)) if repeated else (codec.value, codec.message)
            optional = optional and nullable
        elif isinstance(kind, type) and issubclass(kind, Enum):
            read, write = _enumeration(field, kind)
        return _Field(field.name, read, write, optional, field.has_presence)


def _without_none(hint: Any) -> tuple[Any, bool]:
    """A type without None, and whether None was one of its kinds."""
    if get_origin(hint) not in (Union, UnionType):
        return hint, False
    kind, *others = (each for each in get_args(hint) if each is not NoneType)
    return (Any if others else kind), NoneType in get_args(hint)


def _defaults(kind: type[Any]) -> Mapping[str, Any]:
    """Of a dataclass or named tuple, by field."""
    if not is_dataclass(kind):
        return getattr(kind, "_field_defaults", {})
    made = {each.name: each.default_factory() for each in fields(kind) if each.default_factory is not MISSING}
    return made | {each.name: each.default for each in fields(kind) if each.default is not MISSING}


def _each(convert: Convert) -> Convert:
    return lambda values: tuple(map(convert, values))


def _enumeration(field: Any, kind: type[Enum]) -> tuple[Convert, Convert]:
    """Between an enumeration's numbers and its members, which have the same names behind the enumeration's own."""
    names: Mapping[int, str] = {each.number: each.name for each in field.enum_type.values}
    prefix = names[0].removesuffix("UNSPECIFIED")
    members = {number: kind[name.removeprefix(prefix)] for number, name in names.items() if number}
    numbers = {member: number for number, member in members.items()}

    unknown = kind.__members__.get("UNKNOWN")

    def read(number: int) -> Enum | None:
        if number and number not in members and unknown is None:
            raise FieldError(field.name, f"must be a value of {field.enum_type.full_name}, not {number}")
        return members.get(number, unknown) if number else None

    return read, numbers.__getitem__
