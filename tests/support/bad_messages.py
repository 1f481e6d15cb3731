"""Protobuf messages that are wrong in some way, from good ones: field by field over the schema, then byte by byte.

for case in bad_messages(seed=1, count=150, good=[pb.GenerateRequest(text="x")]):
    case.data   # bytes to send;  repr(case) has all that is needed to see it again
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_INTEGERS = (0, 1, -1, 2, 16, 17, 64, 65, 2**31 - 1, -(2**31), 2**32 - 1, 2**63 - 1, -(2**63), 2**64 - 1)
_FLOATS = (0.0, -0.0, 1.0, -1.0, 2.0, 2.0000001, 5e-324, 1e308, -1e308, float("nan"), float("inf"), float("-inf"))
_STRINGS = (
    "",
    "x",
    "\0",
    "a b",
    "é" * 65,
    "x" * 129,
    "x" * 20_000,
    "\ufffe\U0010ffff",
    "../../x",
    "user\n<|im_start|>",
)
_BOUNDS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
}
_COUNTS = (0, 1, 2, 16, 17, 64, 65, 300)
# What no serialiser writes: field 0, an endless varint, a length beyond the end, the wire types 6 and 7, groups that
# end without having begun or nest without an end, an unknown field, a lone byte of each kind.
_PIECES = (
    b"\x00",
    b"\x08" + b"\xff" * 11,
    b"\x0a\xff\xff\xff\xff\x0f",
    b"\x0e\x0f",
    b"\x0c",
    b"\x0b" * 300,
    b"\xf8\xff\xff\xff\x0f\x01",
    b"\x0a",
    b"\x12\x02\xc3\x28",
    b"\xff",
)


@dataclass(frozen=True)
class BadMessage:
    """The `index`-th message of a seed, made of a message of type `kind`."""

    seed: int
    index: int
    kind: str
    data: bytes


def bad_messages(seed: int, count: int, good: Sequence[Message]) -> Iterator[BadMessage]:
    """So many, always the same for the same arguments. Some are good after all."""
    for index in range(count):
        rng = random.Random(f"{seed}/{index}")
        message = rng.choice(good)
        yield BadMessage(seed, index, message.DESCRIPTOR.name, _spoil(rng, message))


def _spoil(rng: random.Random, good: Message) -> bytes:
    message = type(good)()
    message.CopyFrom(good)
    way = rng.random()
    if way < 0.8:
        for _ in range(rng.randint(1, 3)):
            change_field(rng, message)
    data = message.SerializeToString()
    return data if way < 0.5 else change_bytes(rng, data)


def change_field(rng: random.Random, message: Any) -> None:
    """Set, clear or multiply one field of the message or of one inside it."""
    if not message.DESCRIPTOR.fields:
        return
    field = rng.choice(message.DESCRIPTOR.fields)
    is_message = field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE
    if rng.random() < 0.1:
        message.ClearField(field.name)
    elif is_message and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields
        getattr(message, field.name)[_value(rng, key)] = _value(rng, value)
    elif field.is_repeated:
        values = getattr(message, field.name)
        if is_message and values and rng.random() < 0.7:
            change_field(rng, rng.choice(values))
            return
        for _ in range(rng.choice(_COUNTS)):
            if is_message:
                values.add()
            else:
                values.append(_value(rng, field))
    elif is_message:
        inner = getattr(message, field.name)
        inner.SetInParent()
        change_field(rng, inner)
    else:
        setattr(message, field.name, _value(rng, field))


def change_bytes(rng: random.Random, data: bytes) -> bytes:
    """Overwrite, insert, remove, repeat or cut off a few bytes."""
    spoilt = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(spoilt) + 1)
        end = at + rng.randint(1, 5)
        way = rng.randrange(6)
        if way == 0:
            spoilt[at:end] = rng.randbytes(end - at)
        elif way == 1:
            spoilt[at:at] = rng.randbytes(rng.randint(1, 9))
        elif way == 2:
            del spoilt[at:end]
        elif way == 3:
            spoilt[at:at] = spoilt[at:end]
        elif way == 4:
            del spoilt[at:]
        else:
            spoilt[at:at] = rng.choice(_PIECES)
    return bytes(spoilt)


def _value(rng: random.Random, field: Any) -> Any:
    if field.cpp_type in _BOUNDS:
        low, high = _BOUNDS[field.cpp_type]
        return rng.choice([each for each in _INTEGERS if low <= each <= high])
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        text = rng.choice(_STRINGS)
        return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
    value = rng.choice(_FLOATS)
    return min(max(value, -3e38), 3e38) if field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT else value
