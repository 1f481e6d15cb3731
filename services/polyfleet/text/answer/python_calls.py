"""Calls that are written as Python calls a function: `weather(city="Paris", days=2)`. Nothing of it is run."""

import ast
import json
import re

from polyfleet.text.answer.calls import Calls
from polyfleet.text.answer.source import NotACall, Reading, Source

MAX_CHARACTERS = 64 * 1024  # of one call
MAX_DEPTH = 64
_NAME = re.compile(r"[^\W\d][\w.-]*")
_PLAIN = re.compile(r"[^'\"()\[\]{}]+")
_WITHIN = re.compile(r"[^'\"\\]+")
_OPENING = "([{"
_JSON = {"true": True, "false": False, "null": None}  # as templates of Python's calls write them, too


class _Spelled(ast.NodeTransformer):
    """JSON's names of constants as Python's."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """As NodeTransformer."""
        return ast.Constant(_JSON[node.id]) if node.id in _JSON else node


def python_calls(source: Source, calls: Calls) -> Reading[None]:
    """One call, several on lines of their own, or a list of calls; in a fenced block or without."""
    yield from source.space()
    fenced = yield from source.maybe("```python")
    yield from source.space()
    if (yield from source.maybe("[")):
        separator = ","
        while separator == ",":
            yield from _call(source, calls)
            separator = yield from source.peek()
            source.take(1)
            yield from source.space()
        if separator != "]":
            raise NotACall
    else:
        while source.held and _NAME.match(source.held):
            yield from _call(source, calls)
            yield from source.maybe(";")
            yield from source.space()
    if fenced:
        yield from source.literal("```")
    yield from source.space()


def _call(source: Source, calls: Calls) -> Reading[None]:
    """`name(key=value, …)`, whose values are literals: told once it is whole, for only then it is JSON."""
    yield from source.space()
    name = yield from source.matching(_NAME)
    calls.check(name)
    if (yield from source.peek()) != "(":
        raise NotACall
    arguments = _as_json((yield from _brackets(source)))
    calls.begin(name)
    calls.argument(arguments)
    yield from source.space()


def _brackets(source: Source) -> Reading[str]:
    """From an opening bracket to the one that closes it."""
    parts: list[str] = []
    depth = length = 0
    while True:
        first = yield from source.peek()
        if first in "'\"":
            parts.append((yield from _string(source, first)))
        elif found := _PLAIN.match(source.held):
            parts.append(source.take(found.end()))
        else:
            parts.append(source.take(1))
            depth += 1 if first in _OPENING else -1
        length += len(parts[-1])
        if length > MAX_CHARACTERS or depth > MAX_DEPTH:
            raise NotACall
        if not depth:
            return "".join(parts)


def _string(source: Source, quote: str) -> Reading[str]:
    parts = [source.take(1)]
    while True:
        first = yield from source.peek()
        if first == "\\":
            while len(source.held) < 2:
                yield from source.more()
            parts.append(source.take(2))
        elif first == quote:
            return "".join((*parts, source.take(1)))
        else:
            found = _WITHIN.match(source.held)
            parts.append(source.take(found.end() if found else 1))


def _as_json(arguments: str) -> str:
    try:
        call = ast.parse(f"_{arguments}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise NotACall
        found = {each.arg: ast.literal_eval(_Spelled().visit(each.value)) for each in call.keywords}
        if None in found:
            raise NotACall
        return json.dumps(found, ensure_ascii=False, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        raise NotACall from None
