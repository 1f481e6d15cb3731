"""An answer as a row of blocks, each of one kind: what is thought, what is said, and each call. Two APIs show it so."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from polyfleet.wire.answers import Delta
from polyfleet.wire.gathered import GatheredChoice
from polyfleet.wire.tools import ToolCallDelta


class Kind(Enum):
    """What a block holds."""

    REASONING = "reasoning"
    TEXT = "text"
    CALL = "call"


class Change(Enum):
    """What happens to a block: it begins, goes on, or ends."""

    BEGUN = "begun"
    MORE = "more"
    ENDED = "ended"


@dataclass(slots=True)
class Block:
    """One block so far; `id` and `name` are a call's."""

    index: int
    kind: Kind
    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All of it: of a call, its arguments' JSON."""
        return "".join(self.pieces)

    @property
    def stands(self) -> bool:
        """Whether it is no call that was withdrawn."""
        return self.kind is not Kind.CALL or bool(self.id)


class Blocks:
    """Turns the deltas of one choice into changes of blocks, one of which is open at a time."""

    def __init__(self) -> None:
        self.all: list[Block] = []
        self._open: Block | None = None
        self._call = -1  # the number of the call that is open

    @property
    def standing(self) -> list[Block]:
        """All blocks but calls that were withdrawn."""
        return [block for block in self.all if block.stands]

    def take(self, delta: Delta) -> Iterator[tuple[Change, Block, str]]:
        """What the delta changes; with MORE comes the piece."""
        yield from self._add(Kind.REASONING, delta.reasoning)
        calls = list(delta.tool_calls)
        if not any(call.withdrawn for call in calls):
            yield from self._add(Kind.TEXT, delta.text)
            delta = delta._replace(text="")
        for call in calls:
            yield from self._take_call(call)
        yield from self._add(Kind.TEXT, delta.text)

    def end(self) -> Iterator[tuple[Change, Block, str]]:
        """Nothing more comes: the open block ends."""
        if self._open is not None:
            yield Change.ENDED, self._open, ""
        self._open = None

    def _take_call(self, call: ToolCallDelta) -> Iterator[tuple[Change, Block, str]]:
        if call.withdrawn:
            if self._open is not None and call.index == self._call:
                self._open.id = ""
            yield from self.end()
            return
        if call.id:
            yield from self._begin(Kind.CALL, call.id, call.name)
            self._call = call.index
        yield from self._more(call.arguments)

    def _add(self, kind: Kind, piece: str) -> Iterator[tuple[Change, Block, str]]:
        if piece and (self._open is None or self._open.kind is not kind):
            yield from self._begin(kind)
        if piece:
            yield from self._more(piece)

    def _begin(self, kind: Kind, call_id: str = "", name: str = "") -> Iterator[tuple[Change, Block, str]]:
        yield from self.end()
        self._open = Block(len(self.all), kind, call_id, name)
        self.all.append(self._open)
        yield Change.BEGUN, self._open, ""

    def _more(self, piece: str) -> Iterator[tuple[Change, Block, str]]:
        if piece and self._open is not None:
            self._open.pieces.append(piece)
            yield Change.MORE, self._open, piece


def blocks_of(choice: GatheredChoice) -> list[Block]:
    """The blocks of a whole answer."""
    found = [(Kind.REASONING, "", "", choice.reasoning), (Kind.TEXT, "", "", choice.text)]
    found = [each for each in found if each[3]]
    found += [(Kind.CALL, call.id, call.name, call.arguments) for call in choice.calls.calls]
    return [Block(index, kind, call_id, name, [text]) for index, (kind, call_id, name, text) in enumerate(found)]
