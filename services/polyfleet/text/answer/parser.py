"""AnswerParser: tells what a model thinks, says and calls apart, while its answer comes."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from polyfleet.text.answer.calls import Calls
from polyfleet.text.answer.formats import ToolFormat
from polyfleet.text.answer.source import EndOfText, Enough, NotACall, Reading, Source, unfinished
from polyfleet.wire.tools import Tool, ToolCallDelta

_BARE = "{"


@dataclass(frozen=True, slots=True)
class Tags:
    """What a model writes around a part of its answer."""

    opening: str
    closing: str


REASONING_TAGS = (  # around thoughts
    Tags("<think>", "</think>"),
    Tags("[THINK]", "[/THINK]"),
    Tags("<|thought_start|>", "<|thought_end|>"),
    Tags("<seed:think>", "</seed:think>"),
)
RESPONSE_TAGS = (  # around what is said, as Hunyuan has them, and ERNIE and Granite
    Tags("<answer>", "</answer>"),
    Tags("<response>", "</response>"),
)


def find_reasoning_tags(template: str) -> Tags | None:
    """Those that the chat template spells, if any."""
    return next((each for each in REASONING_TAGS if each.closing in template), None)


def find_response_tags(template: str) -> Tags | None:
    """Those that the chat template spells, if any."""
    return next((each for each in RESPONSE_TAGS if each.opening in template), None)


class Parsed(NamedTuple):
    """What some text came to."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()

    def then(self, more: "Parsed") -> "Parsed":
        """This, and what came of the text behind it."""
        return Parsed(self.text + more.text, self.reasoning + more.reasoning, self.tool_calls + more.tool_calls)


class AnswerParser:
    """Reads one answer. Without `tool_format` no calls are looked for, without `tags` no thoughts.

    `thinking`: the prompt ended within thoughts. A call that can't be read, or of an unknown tool, is text. Of calls
    beyond `most_calls` (0: any number) nothing is told, nor of `response_tags` around what is said.
    """

    def __init__(
        self,
        tool_format: ToolFormat | None,
        tools: Sequence[Tool],
        tags: Tags | None,
        *,
        response_tags: Tags | None = None,
        thinking: bool = False,
        most_calls: int = 0,
    ) -> None:
        self._format = tool_format
        self._tags = tags
        self._response_tags = response_tags
        self._closing = ""  # what ends the part that is said, within its tags
        self._thinking = thinking and tags is not None
        self._source = Source()
        self._calls = Calls(tools, short_ids=bool(tool_format and tool_format.short_ids), most=most_calls)
        self._names = tuple(tool.name for tool in tools)
        self._said: list[str] = []
        self._thought: list[str] = []
        self._truncated = False
        self._calling = False
        self._space = ""  # before calls: not told, unless they are none
        self._reader: Generator[None, None, None] = self._read()
        next(self._reader)

    @property
    def markers(self) -> frozenset[str]:
        """Special tokens that it wants to read, which no text shows otherwise."""
        tags = [text for each in (self._tags, self._response_tags) if each for text in (each.opening, each.closing)]
        return frozenset((*tags, *(self._format.markers if self._format else ())))

    @property
    def thinking(self) -> bool:
        """Whether what came last is within thoughts."""
        return self._thinking

    @property
    def calls_tools(self) -> bool:
        """Whether some call stands."""
        return self._calls.num_standing > 0

    @property
    def done(self) -> bool:
        """Whether all calls have come that may."""
        return self._calls.full and not self._calls.under_way

    def add(self, text: str) -> Parsed:
        """What is certain with this text."""
        self._source.held += text
        self._advance()
        return self._take()

    def finish(self, *, truncated: bool) -> Parsed:
        """The rest. `truncated`: the answer would have gone on; then half a call stands."""
        self._source.ended, self._truncated = True, truncated
        self._advance()
        return self._take()

    def _advance(self) -> None:
        next(self._reader, None)

    def _take(self) -> Parsed:
        parsed = Parsed("".join(self._said), "".join(self._thought), self._calls.take())
        self._said.clear()
        self._thought.clear()
        if not self._calling:
            self._source.taken.clear()
        return parsed

    def _read(self) -> Generator[None, None, None]:
        yield
        source = self._source
        if not self._thinking and self._tags:
            self._thinking = yield from self._opens(self._tags)
        if self._thinking:
            yield from self._think()
        if self._response_tags and (yield from self._opens(self._response_tags)):
            self._closing = self._response_tags.closing
            yield from self._behind_tag()
        if self._format and self._format.bare:
            yield from self._bare()
        while (source.held or not source.ended) and not self.done:
            if (yield from self._say()):
                yield from self._call()

    def _opens(self, tags: Tags) -> Reading[bool]:
        """Take an opening tag and the space before it; without one, that space is still to be read."""
        space: list[str] = []
        yield from self._source.space(space.append)
        found = yield from self._source.maybe(tags.opening)
        if not found:
            self._source.held = "".join((*space, self._source.held))
        return found

    def _behind_tag(self) -> Reading[None]:
        """Take line breaks."""
        while True:
            self._source.held = self._source.held.lstrip("\n")
            if self._source.held or self._source.ended:
                return
            yield

    def _think(self) -> Reading[None]:
        """Up to the closing tag, or the end; line breaks around thoughts are not told."""
        assert self._tags
        source, closing = self._source, self._tags.closing
        begun = False
        while True:
            if not begun:
                source.held = source.held.lstrip("\n")
                begun = bool(source.held)
            at = source.held.find(closing)
            if at >= 0:
                self._thought.append(source.take(at).rstrip("\n"))
                source.take(len(closing))
                self._thinking = False
                break
            if source.ended:
                self._thought.append(source.take(len(source.held)))
                return
            safe = source.held[: len(source.held) - unfinished(source.held, (closing,))].rstrip("\n")
            self._thought.append(source.take(len(safe)))
            yield
        yield from self._behind_tag()

    def _say(self) -> Reading[bool]:
        """Text up to the next opening of calls (True), the tag that closes it, or the end.

        Space before calls and around that tag is not told.
        """
        source, openings = self._source, self._format.openings if self._format else ()
        marks = (*openings, *([self._closing] if self._closing else ()))
        while True:
            found = [at for mark in marks if (at := source.held.find(mark)) >= 0]
            if found:
                text = source.take(min(found))
                said = text.rstrip()
                self._said.append(said)
                self._space = text[len(said) :]
                return not (self._closing and (yield from self._closes()))
            if source.ended:
                self._said.append(source.take(len(source.held)))
                return False
            safe = source.held[: len(source.held) - unfinished(source.held, marks)]
            self._said.append(source.take(len(safe.rstrip() if marks else safe)))
            yield

    def _closes(self) -> Reading[bool]:
        """Take the tag that closes what is said, if it comes next; space behind it counts where something follows."""
        source, space = self._source, list[str]()
        found = yield from source.maybe(self._closing)
        if found:
            self._closing = ""
            yield from source.space(space.append)
            source.held = "".join((*space, source.held)) if source.held else ""
        return found

    def _bare(self) -> Reading[None]:
        """Calls that the answer begins with: a JSON object, the name of a tool and one, or a list of Python's calls."""
        space: list[str] = []
        yield from self._source.space(space.append)
        begins = yield from self._source.begins(_BARE)
        for name in self._names:
            for call in (f"{name}\n", f"[{name}("):
                begins = begins or (yield from self._source.begins(call))
        if begins:
            self._space = "".join(space)
            yield from self._call(opened=False)
        else:
            self._said += space

    def _call(self, *, opened: bool = True) -> Reading[None]:
        """Calls behind an opening; what is none is told as text."""
        form = self._format
        assert form

        def whole() -> Reading[None]:
            for opening in form.openings if opened else ():
                yield from self._source.maybe(opening)
            yield from form.body(self._source, self._calls)
            yield from self._source.maybe(form.closing)

        yield from self._attempt(whole())

    def _attempt(self, reading: Reading[None]) -> Reading[None]:
        """Read calls; what is none is told as text."""
        source, calls = self._source, self._calls
        source.taken.clear()
        calls.attempt()
        self._calling = True
        try:
            yield from reading
        except Enough:
            source.take(len(source.held))
        except NotACall as error:
            if isinstance(error, EndOfText) and self._truncated and calls.under_way:
                source.take(len(source.held))
            else:
                calls.withdraw()
                self._said.append("".join((self._space, *source.taken)))
        self._space = ""
        calls.attempt()
        self._calling = False
