"""Streamed text on a terminal: broken between words, each word shown whole. Pure: text in, text to print out."""

import re

from rich.cells import cell_len

CONTROLS = dict.fromkeys({*range(32), *range(127, 160)} - {ord("\n"), ord("\t")})  # which would steer a terminal
_PIECE = re.compile(r"\n|[^\S\n]+|[^\s]+")


class Wrapper:
    """Breaks lines at `width` cells; a word is held back until it has ended, or fills a line of its own.

    Control characters are left out, so that no model clears a screen or writes into a clipboard.
    """

    def __init__(self, width: int) -> None:
        self._width = max(1, width)
        self._column = 0
        self._space = ""  # between what was shown and the word that is held
        self._word = ""

    def add(self, text: str) -> str:
        """What can be shown now that this has come."""
        shown = ""
        for piece in _PIECE.findall(text.translate(CONTROLS)):
            if piece == "\n":
                shown += self._show_word() + "\n"
                self._column, self._space = 0, ""
            elif piece.isspace():
                shown += self._show_word()
                self._space += piece
            else:
                shown += self._take(piece)
        return shown

    def finish(self) -> str:
        """The rest: a word that nothing has ended."""
        return self._show_word()

    def _take(self, piece: str) -> str:
        """Hold the beginning or the rest of a word; wide characters, as Chinese has them, are words each."""
        shown = ""
        for character in piece:
            size = cell_len(character)
            if size > 1 or cell_len(self._word) + size > self._width:
                shown += self._show_word()
            self._word += character
            if size > 1:
                shown += self._show_word()
        return shown

    def _show_word(self) -> str:
        if not self._word:
            return ""
        size, gap = cell_len(self._word), cell_len(self._space.expandtabs())
        if self._column + gap + size > self._width:
            shown, self._column = ("\n" if self._column else "") + self._word, size
        else:
            shown, self._column = self._space + self._word, self._column + gap + size
        self._space = self._word = ""
        return shown
