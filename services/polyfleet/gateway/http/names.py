"""What endpoints call the core's fields, by which errors name them as the client wrote them. Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import NamedTuple

from polyfleet.wire.requests import Message
from polyfleet.wire.structure import Structure

Names = Mapping[str, str]  # paths of the core and what they are called, `[*]` for any index: what follows stays
AS_IN_CORE: Names = MappingProxyType({})
CHAT: Names = MappingProxyType(
    {
        "messages[*].parts": "messages[*].content",
        "template_arguments": "chat_template_kwargs",
        "tool_names": "tool_choice",
    }
)
_INDEX = re.compile(r"\[[^\]]*\]")


class Placed(NamedTuple):
    """A message of the core, and where the body has it, its role and the parts of its content."""

    message: Message
    path: str
    role: str
    parts: tuple[str, ...] = ()


def http_field(field: str, names: Names) -> str:
    """The endpoint's name for a field of the core: `sampling.top_p` is `top_p` for all, others are as `names` say.

    The longest path of theirs that the field begins with counts, the one of its own indices before that of any.
    """
    name = field.removeprefix("sampling.")
    ends = [len(name), *(found.start() for found in re.finditer(r"[.\[]", name))]
    for end in sorted(ends, reverse=True):
        begun, behind = name[:end], name[end:]
        if called := names.get(begun):
            return called + behind
        if called := names.get(_INDEX.sub("[*]", begun)):
            return called.replace("[*]", "%s") % tuple(_INDEX.findall(begun)) + behind
    return name


def of_structure(field: str) -> dict[str, str]:
    """Those of a structure that stands in one field."""
    return dict.fromkeys(("structure", *(f"structure.{each.name}" for each in fields(Structure))), field)


def of_messages(placed: Iterable[Placed]) -> dict[str, str]:
    """Those of the messages that a body's were made into."""
    names: dict[str, str] = {}
    for index, each in enumerate(placed):
        path = f"messages[{index}]"
        names |= {path: each.path, f"{path}.role": each.role, f"{path}.tool_calls": each.path}
        for number, part in enumerate(each.parts):
            names |= dict.fromkeys((f"{path}.parts[{number}]", f"{path}.parts[{number}].image_url"), part)
    return names
