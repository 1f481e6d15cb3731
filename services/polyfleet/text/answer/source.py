"""Text that comes in pieces, for readers that are generators: they yield where they want more."""

import re
from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")
Reading = Generator[None, None, T]
Sink = Callable[[str], object]
_SPACE = re.compile(r"\s*")


class NotACall(Exception):
    """What began as a call of a tool does not go on as one."""


class EndOfText(NotACall):
    """The text ended within one."""


class Enough(Exception):
    """All calls have come that may."""


class Source:
    """`held` is what has come and was not taken; `taken` all that was since it was last cleared."""

    def __init__(self) -> None:
        self.held = ""
        self.taken: list[str] = []
        self.ended = False

    def more(self) -> Reading[None]:
        """Wait for text. Raises EndOfText."""
        if self.ended:
            raise EndOfText
        yield

    def peek(self) -> Reading[str]:
        """The next character, which is not taken."""
        while not self.held:
            yield from self.more()
        return self.held[0]

    def take(self, count: int) -> str:
        """The next characters, which must be here."""
        text, self.held = self.held[:count], self.held[count:]
        self.taken.append(text)
        return text

    def space(self, sink: Sink | None = None) -> Reading[None]:
        """Take white space up to something else, or to the end of the text."""
        while True:
            found = _SPACE.match(self.held)
            if found and found.end():
                text = self.take(found.end())
                if sink:
                    sink(text)
            if self.held or self.ended:
                return
            yield

    def begins(self, text: str) -> Reading[bool]:
        """Whether what comes next is this."""
        while len(self.held) < len(text) and text.startswith(self.held) and not self.ended:
            yield
        return self.held.startswith(text)

    def maybe(self, text: str) -> Reading[bool]:
        """Take this if it comes next."""
        found = bool(text) and (yield from self.begins(text))
        if found:
            self.take(len(text))
        return found

    def literal(self, text: str) -> Reading[None]:
        """Take this, which has to come."""
        if not (yield from self.maybe(text)):
            raise EndOfText if self.ended and text.startswith(self.held) else NotACall

    def until(self, end: str) -> Reading[str]:
        """Take all up to `end`, and that too; gives what is before it."""
        while end not in self.held:
            yield from self.more()
        text = self.take(self.held.index(end))
        self.take(len(end))
        return text

    def matching(self, pattern: "re.Pattern[str]") -> Reading[str]:
        """Take all that the pattern matches from here on; something else must follow."""
        text = ""
        while True:
            found = pattern.match(self.held)
            text += self.take(found.end()) if found else ""
            if self.held:
                return text
            yield from self.more()


def unfinished(text: str, markers: tuple[str, ...]) -> int:
    """How many characters at the text's end may be the beginning of a marker."""
    longest = max(map(len, markers), default=0)
    for size in range(min(longest - 1, len(text)), 0, -1):
        tail = text[-size:]
        if any(marker.startswith(tail) for marker in markers):
            return size
    return 0
