"""ChannelParser: reads answers that are several messages, each in a channel, as gpt-oss writes them (harmony).

<|channel|>analysis<|message|>thoughts<|end|>
<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{…}<|call|>
<|start|>assistant<|channel|>final<|message|>the answer<|return|>
"""

import re
from collections.abc import Generator, Sequence
from dataclasses import replace

from polyfleet.text.answer import json_reader
from polyfleet.text.answer.formats import HARMONY
from polyfleet.text.answer.parser import AnswerParser
from polyfleet.text.answer.source import EndOfText, NotACall, Reading, unfinished
from polyfleet.wire.tools import Tool

THOUGHTS = "analysis"
_HEADERS = ("<|start|>", "<|channel|>")  # what a message's header begins with
_FIRST_HEADERS = (*_HEADERS, " to=")  # the same of the first message, whose beginning stands in the prompt
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")
_BETWEEN = "\n"  # messages of thoughts, and of text


class ChannelParser(AnswerParser):
    """What is in the channel analysis is thought, calls go to a recipient, everything else is said.

    `bare`: an answer without channels may begin with calls, as a grammar asks for them.
    """

    def __init__(self, tools: Sequence[Tool], *, bare: bool = False, most_calls: int = 0) -> None:
        super().__init__(replace(HARMONY, bare=bare), tools, None, most_calls=most_calls)

    def _read(self) -> Generator[None, None, None]:
        yield
        source = self._source
        headers: tuple[str, ...] = _FIRST_HEADERS
        self._shown: set[int] = set()  # ids of the sinks that have begun
        if self._format and self._format.bare:
            yield from self._bare()
        while (source.held or not source.ended) and not self.done:
            for end in _ENDS:
                yield from source.maybe(end)
            begun = False
            for header in headers:
                begun = begun or (yield from source.begins(header))
            headers = _HEADERS
            try:
                said = (yield from source.until("<|message|>")) if begun else ""
            except EndOfText:
                source.take(len(source.held))
                return
            yield from self._message(said)

    def _message(self, header: str) -> Reading[None]:
        channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
        if recipient and recipient[1] in self._names:
            yield from self._attempt(self._arguments(recipient[1]))
        self._thinking = channel is not None and channel[1] == THOUGHTS
        yield from self._tell(self._thought if self._thinking else self._said)
        self._thinking = False

    def _arguments(self, name: str) -> Reading[None]:
        source = self._source
        self._calls.check(name)
        yield from source.space()
        if (yield from source.peek()) != "{":
            raise NotACall
        self._calls.begin(name)
        yield from json_reader.value(source, self._calls.argument)
        yield from source.space()

    def _tell(self, sink: list[str]) -> Reading[None]:
        """The rest of a message."""
        source, marks = self._source, (*_ENDS, *_HEADERS)
        begun = False
        while True:
            found = [at for mark in marks if (at := source.held.find(mark)) >= 0]
            safe = min(found) if found else len(source.held)
            if not found and not source.ended:
                safe -= unfinished(source.held, marks)
            if safe and not begun and id(sink) in self._shown:
                sink.append(_BETWEEN)
            if safe:
                begun = True
                self._shown.add(id(sink))
                sink.append(source.take(safe))
            if found or source.ended:
                return
            yield
