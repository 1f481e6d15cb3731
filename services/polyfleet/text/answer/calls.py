"""The calls of one answer, as they are found."""

import json
import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import replace

from polyfleet.text.answer.source import Enough, NotACall
from polyfleet.wire.tools import Tool, ToolCallDelta

_ALPHANUMERIC = string.ascii_letters + string.digits


def long_id() -> str:
    """As OpenAI's."""
    return f"call_{secrets.token_hex(12)}"


def short_id() -> str:
    """As Mistral's chat templates want it: 9 letters and digits."""
    return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(9))


class Calls:
    """Numbers calls, and collects their increments in `deltas`, which is the reader's to clear.

    `most`: calls behind so many are not told.
    """

    def __init__(self, tools: Sequence[Tool], *, short_ids: bool = False, most: int = 0) -> None:
        self.deltas: list[ToolCallDelta] = []
        self.num_begun = 0
        self.num_standing = 0
        self._tools: Mapping[str, Tool] = {tool.name: tool for tool in tools}
        self._make_id = short_id if short_ids else long_id
        self._most = most
        self._attempt = 0  # the number of its first call

    @property
    def full(self) -> bool:
        """Whether further calls are not told."""
        return 0 < self._most <= self.num_standing

    def attempt(self) -> None:
        """What comes may be one or several calls."""
        self._attempt = self.num_begun

    def withdraw(self) -> None:
        """The last attempt came to nothing."""
        begun = range(self._attempt, self.num_begun)
        self.deltas += [ToolCallDelta(index, withdrawn=True) for index in begun]
        self.num_standing -= len(begun)

    @property
    def under_way(self) -> bool:
        """Whether a call of this attempt has begun."""
        return self.num_begun > self._attempt

    def check(self, name: str) -> None:
        """Raise NotACall where there is no such tool, Enough where no more calls are told."""
        if self.full:
            raise Enough
        if name not in self._tools:
            raise NotACall

    def begin(self, name: str, call_id: str = "") -> None:
        """A call of this tool, whose id the model has given, or is made. Raises as `check`."""
        self.check(name)
        self.deltas.append(ToolCallDelta(self.num_begun, call_id or self._make_id(), name))
        self.num_begun += 1
        self.num_standing += 1

    def argument(self, piece: str) -> None:
        """More of the arguments' JSON text."""
        self.deltas.append(ToolCallDelta(self.num_begun - 1, arguments=piece))

    def is_text(self, name: str, key: str) -> bool:
        """Whether a tool's argument is a string by its schema."""
        properties = self._tools[name].parameters.get("properties")
        schema = properties.get(key) if isinstance(properties, dict) else None
        return isinstance(schema, dict) and schema.get("type") == "string"

    def take(self) -> tuple[ToolCallDelta, ...]:
        """The increments since the last time; pieces of one call's arguments as one."""
        merged: list[ToolCallDelta] = []
        for delta in self.deltas:
            if merged and merged[-1].index == delta.index and not (delta.name or delta.withdrawn):
                last = merged[-1]
                merged[-1] = replace(last, arguments=last.arguments + delta.arguments)
            else:
                merged.append(delta)
        self.deltas.clear()
        return tuple(merged)


def as_object(arguments: str) -> str:
    """Arguments that came whole, as an object's JSON: null is none, a string spells them. Raises NotACall."""
    try:
        said = json.loads(arguments or "{}")
        if isinstance(said, str):
            arguments, said = said, json.loads(said)
    except (ValueError, RecursionError):
        raise NotACall from None
    if said is None:
        return "{}"
    if not isinstance(said, dict):
        raise NotACall
    return arguments or "{}"
