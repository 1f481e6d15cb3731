"""What the bodies of all APIs state alike, as the core takes it: sampling, tools, texts in parts. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from polyfleet.gateway.http.bodies import NOTHING
from polyfleet.wire.images import Image
from polyfleet.wire.sampling import DEFAULTABLE, SamplingParams

Parts = Sequence[tuple[str, str | Image]]  # of a content, each with its path


class Content(NamedTuple):
    """What a message says and shows, and where the body has each part of it."""

    value: str | tuple[str | Image, ...]
    places: tuple[str, ...] = ()

    @classmethod
    def of(cls, parts: Parts) -> "Content":
        """Of what came in parts."""
        return cls(one_or_all([part for _, part in parts]), tuple(place for place, _ in parts))


def stated(body: msgspec.Struct, names: Iterable[str]) -> dict[str, Any]:
    """What the body states of these fields."""
    found = {name: value for name in names if (value := getattr(body, name)) is not None}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}


def sampling_of(given: dict[str, Any]) -> dict[str, Any]:
    """The fields `sampling` and `left_out` of the request of a body that states these parameters."""
    return {"sampling": SamplingParams(**given), "left_out": frozenset(DEFAULTABLE) - given.keys()}


def function_json(name: str, description: str | None, parameters: msgspec.Raw, strict: bool | None) -> str:
    """A tool as JSON, in the form of OpenAI's chats; what is null or missing is left out."""
    function = {"name": name, "description": description, "parameters": parameters, "strict": strict}
    kept = {key: value for key, value in function.items() if value is not None and value != NOTHING}
    return msgspec.json.encode({"type": "function", "function": kept}).decode()


def one_or_all(parts: Sequence[str | Image]) -> str | tuple[str | Image, ...]:
    """A content's only text, or its parts where it has others."""
    only = parts[0] if len(parts) == 1 else None
    return only if isinstance(only, str) else tuple(parts)
