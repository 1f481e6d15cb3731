"""Where a long text may be cut so that its pieces have the tokens of the whole: encoding takes memory for one piece."""

import re
from collections.abc import Callable, Iterator
from itertools import islice

PIECE_CHARACTERS = 1 << 16
AROUND = 128  # characters on either side of a cut that must have the same tokens with and without it
MAX_TRIES = 16  # of places to cut at, within the length of a piece
_EDGE = re.compile(r"(?<=\w)(?=\s\w)|(?<=\w)(?=[^\w\s])|(?<=[^\w\s])(?=\s?\w)|(?<=\n)(?=\w)")


def cut(text: str, same: Callable[[str, int], bool]) -> Iterator[str]:
    """The pieces of `text`. `same` tells whether a short text has the tokens of its two parts, cut at an index.

    A piece is longer where there is no good cut.
    """
    start = 0
    while (end := _end_of_piece(text, start, same)) < len(text):
        yield text[start:end]
        start = end
    yield text[start:]


def _end_of_piece(text: str, start: int, same: Callable[[str, int], bool]) -> int:
    for begin in range(start + PIECE_CHARACTERS, len(text) - PIECE_CHARACTERS, PIECE_CHARACTERS):
        for edge in islice(_EDGE.finditer(text, begin, begin + PIECE_CHARACTERS), MAX_TRIES):
            at = edge.start()
            if same(text[at - AROUND : at + AROUND], AROUND):
                return at
    return len(text)
