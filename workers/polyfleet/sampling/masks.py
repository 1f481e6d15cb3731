"""Which tokens rows of logits may not take. Only rows that may not take all cost anything, each by what is said of it.

A set of tokens is a row of bits: bit t % 32 of word t // 32 is set where token t may be drawn. So do the libraries that
compile grammars write theirs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyfleet.sampling.draw import Bools, Ints

Int32s = NDArray[np.int32]

WORD_BITS = 32
BIT_OF_WORD = (np.uint32(1) << np.arange(WORD_BITS, dtype=np.uint32)).view(np.int32)  # each alone
NO_BITS = np.zeros((0, 0), dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Masks:
    """Of S rows of logits: sets of tokens for some, single tokens that are barred for some. A row may have both.

    At least one token is left to every row.
    """

    rows: Ints  # [M] ascending
    bits: Int32s  # [M, ceil(V / 32)] the tokens that each may take; bits behind the last token say nothing
    barred_rows: Ints  # [N] ascending, a row as often as it has barred tokens
    barred_ids: Ints  # [N]

    @classmethod
    def of(cls, bits: Mapping[int, Int32s], barred: Mapping[int, Sequence[int]]) -> "Masks":
        """Of the rows that have bits and of those that have barred tokens, each in ascending order."""
        lists = barred.items()
        return cls(
            np.array(list(bits), dtype=np.int64),
            np.stack(list(bits.values())) if bits else NO_BITS,
            np.array([row for row, ids in lists for _ in ids], dtype=np.int64),
            np.array([each for _, ids in lists for each in ids], dtype=np.int64),
        )

    def touched(self, num_rows: int) -> Bools:
        """[S] rows that may not take every token."""
        touched = np.zeros(num_rows, dtype=bool)
        touched[self.rows] = touched[self.barred_rows] = True
        return touched

    def take(self, rows: Ints) -> "Masks":
        """Of these rows alone, which ascend: the first of them becomes row 0."""
        places, kept = _places(self.rows, rows)
        barred_places, barred_kept = _places(self.barred_rows, rows)
        return Masks(places, self.bits[kept], barred_places, self.barred_ids[barred_kept])

    def disallowed(self, vocabulary: int) -> Bools:
        """[M, V] the tokens that the sets of `rows` leave out."""
        octets = self.bits.astype("<i4", copy=False).view(np.uint8)
        allowed = np.unpackbits(octets, axis=-1, count=vocabulary, bitorder="little")
        return np.logical_not(allowed)


def all_tokens(vocabulary: int) -> Int32s:
    """[ceil(V / 32)] the set of all tokens."""
    return np.full(-(-vocabulary // WORD_BITS), -1, dtype=np.int32)


def bar(bits: Int32s, token_ids: Iterable[int]) -> None:
    """Take tokens out of a set, in place."""
    words = bits.view(np.uint32)
    for each in token_ids:
        words[each // WORD_BITS] &= np.uint32(0xFFFFFFFF ^ (1 << each % WORD_BITS))


def _places(of: Ints, rows: Ints) -> tuple[Ints, Bools]:
    """Where those of `of` that are among `rows` stand in there, and which these are."""
    places = np.searchsorted(rows, of)
    kept = np.isin(of, rows)
    return places[kept], kept
