"""Contents of a chat, kept apart from the template's own text while both are rendered into one prompt.

A control token is known by its spelling, whoever spelled it. So in contents the punctuation of control tokens is
replaced by stand-ins before rendering and put back afterwards, when the template's own control tokens have been found.
A stand-in replaces one character by one, so that strip, slices, length, split and `in` do what they would have done.
Stand-ins are lone surrogates: no request holds any, for they are no Unicode text.
"""

import re
from collections.abc import Iterable
from typing import Any

FIRST_STAND_IN = 0xD800
MAX_STAND_INS = 0x400
# Methods of str whose first argument is looked for in the text.
READERS = frozenset(
    [
        *("split", "rsplit", "partition", "rpartition", "find", "rfind", "index", "rindex", "count", "replace"),
        *("startswith", "endswith", "removeprefix", "removesuffix"),
    ]
)
STRIPPERS = frozenset(("strip", "lstrip", "rstrip"))  # whose argument is a set of characters


class Shield:
    """The stand-ins for the punctuation of these spellings; of a spelling without any, for its first character."""

    def __init__(self, spellings: Iterable[str]) -> None:
        characters = sorted({character for spelling in spellings for character in _signs(spelling)})[:MAX_STAND_INS]
        self._hide = {ord(character): FIRST_STAND_IN + i for i, character in enumerate(characters)}
        self._show = {stand_in: character for character, stand_in in self._hide.items()}

    def hide(self, text: str) -> str:
        """`text`, which holds no surrogates, with stand-ins: no control token begins or ends in it."""
        return text.translate(self._hide)

    def show(self, text: str) -> str:
        """`text` as it was."""
        return text.translate(self._show)

    def is_in(self, part: Any, whole: Any) -> Any:
        """`part in whole`, where `whole` may be or hold contents and `part` a constant of the template."""
        if part in whole or not isinstance(part, str):
            return part in whole
        if isinstance(whole, str):
            return self.hide(part) in whole
        return isinstance(whole, (list, tuple)) and any(self.is_same(part, each) for each in whole)

    def is_same(self, left: Any, right: Any) -> Any:
        """`left == right`, where one may be contents and the other a constant of the template."""
        if left == right or not (isinstance(left, str) and isinstance(right, str)):
            return left == right
        return self.hide(left) == right or left == self.hide(right)

    def arguments(self, method: str, text: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """What to call `text.method` with: a constant that is looked for is looked for as the contents have it."""
        if method in STRIPPERS:
            return tuple(each + self.hide(each) if isinstance(each, str) else each for each in arguments)
        if method in READERS and arguments:
            return (self._looked_for(arguments[0], text), *arguments[1:])
        return arguments

    def _looked_for(self, constant: Any, text: str) -> Any:
        if isinstance(constant, tuple):
            return tuple(self._looked_for(each, text) for each in constant)
        if not isinstance(constant, str):
            return constant
        hidden = self.hide(constant)
        return hidden if hidden in text else constant

    def escape(self, json_text: str) -> str:
        """`json_text` with all but ASCII escaped; stand-ins stay."""
        return re.sub(r"[^\x00-\x7f]", self._escaped, json_text)

    def spelled(self, value: Any) -> str:
        """A list or an object as Python spells it; stand-ins stay."""
        return re.sub(r"\\(?:u(d[89ab]..)|.)", self._unescaped, str(value))

    def _unescaped(self, match: "re.Match[str]") -> str:
        code = int(match[1] or "0", 16)
        return chr(code) if code in self._show else match[0]

    def _escaped(self, match: "re.Match[str]") -> str:
        code = ord(match[0])
        if code in self._show:
            return match[0]
        return f"\\u{code:04x}" if code < 0x10000 else "".join(f"\\u{unit:04x}" for unit in _utf16(code))


def _signs(spelling: str) -> set[str]:
    """The characters of a spelling that have to be hidden."""
    return {each for each in spelling if not each.isalnum() and not each.isspace()} or set(spelling[:1])


def _utf16(code: int) -> tuple[int, int]:
    """The surrogates of a character beyond U+FFFF."""
    return 0xD800 + (code - 0x10000 >> 10), 0xDC00 + (code - 0x10000 & 0x3FF)
