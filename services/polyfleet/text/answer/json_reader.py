"""JSON as it comes: each piece is passed on once it is known to be valid so far."""

import json
import re

from polyfleet.text.answer.source import NotACall, Reading, Sink, Source

MAX_DEPTH = 64
_CHARACTERS = re.compile(r'[^"\\\x00-\x1f]+')
_SCALAR = re.compile(r"[-+.0-9A-Za-z]+")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_HEX = frozenset("0123456789abcdefABCDEF")


def value(source: Source, sink: Sink, depth: int = 0) -> Reading[None]:
    """Any value, behind white space. Raises NotACall."""
    yield from source.space(sink)
    first = yield from source.peek()
    if first == '"':
        yield from string(source, sink)
    elif first in "{[":
        yield from _container(source, sink, depth)
    else:
        word = yield from source.matching(_SCALAR)
        if word not in ("true", "false", "null") and not _NUMBER.fullmatch(word):
            raise NotACall
        sink(word)


def _container(source: Source, sink: Sink, depth: int) -> Reading[None]:
    if depth == MAX_DEPTH:
        raise NotACall
    opening = source.take(1)
    sink(opening)
    close, separator = ("}" if opening == "{" else "]"), ""
    yield from source.space(sink)
    if (yield from source.peek()) == close:
        separator = close
        sink(source.take(1))
    while separator != close:
        if opening == "{":
            yield from key(source, sink)
        yield from value(source, sink, depth + 1)
        separator = yield from behind_item(source, sink, close)


def key(source: Source, sink: Sink) -> Reading[None]:
    """A member's key, and the colon behind it."""
    yield from source.space(sink)
    yield from string(source, sink)
    yield from source.space(sink)
    yield from source.literal(":")
    sink(":")


def behind_item(source: Source, sink: Sink, close: str) -> Reading[str]:
    """What follows an item: a comma, or the container's end."""
    yield from source.space(sink)
    separator = yield from source.peek()
    if separator not in (",", close):
        raise NotACall
    sink(source.take(1))
    return separator


def string(source: Source, sink: Sink) -> Reading[None]:
    """A string, quotes included."""
    yield from source.literal('"')
    sink('"')
    while True:
        first = yield from source.peek()
        if first == '"':
            sink(source.take(1))
            return
        if first == "\\":
            sink((yield from _escape(source)))
        elif found := _CHARACTERS.match(source.held):
            sink(source.take(found.end()))
        else:
            raise NotACall


def _escape(source: Source) -> Reading[str]:
    while len(source.held) < 2:
        yield from source.more()
    size = 6 if source.held[1] == "u" else 2
    while len(source.held) < size:
        yield from source.more()
    text = source.take(size)
    if text[1] not in '"\\/bfnrtu' or not _HEX.issuperset(text[2:]):
        raise NotACall
    return text


def text_of(source: Source) -> Reading[str]:
    """What a string says."""
    parts: list[str] = []
    yield from source.space()
    yield from string(source, parts.append)
    said = json.loads("".join(parts))
    assert isinstance(said, str)
    return said


def whole(source: Source) -> Reading[str]:
    """A value's text, once all of it is here."""
    parts: list[str] = []
    yield from value(source, parts.append)
    return "".join(parts).strip()
