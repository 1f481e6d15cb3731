"""What may stand at a place of a JSON body, by its type: told where something else stands there."""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from msgspec import inspect

INVALID = re.compile(r"Invalid (?:enum )?value ('.*'|-?\d+)", re.DOTALL)  # how msgspec says that it is none of them
_STEP = re.compile(r"\.(\w+)|\[(?:\d+|\.\.\.)\]")
_type_info = lru_cache(maxsize=64)(inspect.type_info)


def choices(kind: Any, path: str) -> list[str]:
    """The values of the enumeration at `path` (`.a[0].b`) in the JSON of `kind`, or of what tells its objects apart.

    None where the place takes others, or is not found.
    """
    here, tags = list(_each(_type_info(kind))), list[str]()
    for step in _STEP.finditer(path):
        name = step[1]
        structs = [each for each in here if isinstance(each, inspect.StructType)]
        tags = [str(each.tag) for each in structs if name and each.tag_field == name]
        if name:
            found = [field.type for each in structs for field in each.fields if field.encode_name == name]
        else:
            items = (getattr(each, "item_type", getattr(each, "value_type", None)) for each in here)
            found = [each for each in items if each is not None]
        here = [inner for each in found for inner in _each(each)]
    return tags or [str(value) for each in here for value in _values(each)]


def _each(kind: inspect.Type) -> Iterator[inspect.Type]:
    """The members of a union, or the type itself."""
    yield from kind.types if isinstance(kind, inspect.UnionType) else (kind,)


def _values(kind: inspect.Type) -> Iterator[Any]:
    if isinstance(kind, inspect.LiteralType):
        yield from kind.values
    elif isinstance(kind, inspect.EnumType):
        yield from (member.value for member in kind.cls)
