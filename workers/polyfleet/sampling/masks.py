"""Which tokens rows of logits may not take as they are, but barred or biased. Rows without such tokens cost nothing.

A set of tokens is a row of bits: bit t % 32 of word t // 32 is set where token t may be drawn. So do the libraries that
compile grammars write theirs.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from polyfleet.sampling.arrays import Bools, Float32s, Int32s, Ints

BARRED = -np.inf
WORD_BITS = 32
BIT_OF_WORD = (np.uint32(1) << np.arange(WORD_BITS, dtype=np.uint32)).view(np.int32)  # each alone
OCTETS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")  # the bits of each
OCTET_SIZES = OCTETS.sum(axis=1, dtype=np.uint8)
CEILINGS = np.where(OCTETS, np.float32(np.inf), np.float32(BARRED))  # by eight bits of a set: of their tokens' logits
NO_BITS = np.zeros((0, 0), dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Masks:
    """Of S rows of logits: sets of tokens for some, biases of single tokens for some. A row may have both.

    At least one token is left to every row.
    """

    rows: Ints  # [M] ascending
    bits: Int32s  # [M, ceil(V / 32)] the tokens that each may take; bits behind the last token say nothing
    biased_rows: Ints  # [N] ascending, a row as often as it has biased tokens
    biased_ids: Ints  # [N] no token twice in a row
    biases: Float32s  # [N] added to logits; BARRED: the token may not be drawn

    @classmethod
    def of(cls, bits: Mapping[int, Int32s], biases: Mapping[int, Mapping[int, float]]) -> "Masks":
        """Of the rows that have bits and of those that have biases by token, each in ascending order."""
        sizes = np.array([len(of_row) for of_row in biases.values()], dtype=np.int64)
        return cls(
            np.array(list(bits), dtype=np.int64),
            np.stack(list(bits.values())) if bits else NO_BITS,
            np.repeat(np.array(list(biases), dtype=np.int64), sizes),
            np.array([token_id for of_row in biases.values() for token_id in of_row], dtype=np.int64),
            np.array([bias for of_row in biases.values() for bias in of_row.values()], dtype=np.float32),
        )

    def touched(self, num_rows: int) -> Bools:
        """[S] rows that may not take every token as it is."""
        touched = np.zeros(num_rows, dtype=bool)
        touched[self.rows] = touched[self.biased_rows] = True
        return touched

    def take(self, rows: Ints) -> "Masks":
        """Of these rows alone, which ascend: the first of them becomes row 0."""
        places, kept = _places(self.rows, rows)
        biased_places, biased = _places(self.biased_rows, rows)
        return Masks(places, self.bits[kept], biased_places, self.biased_ids[biased], self.biases[biased])

    def allow(self, token_ids: Ints) -> Bools:
        """[M] whether each of `rows` may take the token that it has among all rows' [S]."""
        words, bits = np.divmod(token_ids[self.rows], WORD_BITS)
        allowed: Bools = (self.bits[np.arange(len(self.rows)), words] >> bits & 1).astype(bool)
        return allowed

    def ceilings(self, vocabulary: int) -> Iterator[Float32s]:
        """Of each of `rows` [V]: infinity where a token may be drawn, else minus infinity."""
        for octets in self.bits.astype("<i4", copy=False).view(np.uint8):
            yield CEILINGS.take(octets, axis=0).reshape(-1)[:vocabulary]


def all_tokens(vocabulary: int) -> Int32s:
    """[ceil(V / 32)] the set of all tokens."""
    return np.full(-(-vocabulary // WORD_BITS), -1, dtype=np.int32)


def no_tokens(vocabulary: int) -> Int32s:
    """[ceil(V / 32)] the set of none, to be filled."""
    return np.zeros(-(-vocabulary // WORD_BITS), dtype=np.int32)


def bar(bits: Int32s, token_ids: Iterable[int]) -> None:
    """Take tokens out of a set, in place."""
    words = bits.view(np.uint32)
    for each in token_ids:
        words[each // WORD_BITS] &= np.uint32(0xFFFFFFFF ^ (1 << each % WORD_BITS))


def allow(bits: Int32s, token_ids: Iterable[int]) -> None:
    """Put tokens into a set, in place."""
    words = bits.view(np.uint32)
    for each in token_ids:
        words[each // WORD_BITS] |= np.uint32(1 << each % WORD_BITS)


def allows(bits: Int32s, token_id: int) -> bool:
    """Whether a token is in a set."""
    return bool(bits.view(np.uint32)[token_id // WORD_BITS] >> np.uint32(token_id % WORD_BITS) & np.uint32(1))


def size(bits: Int32s) -> int:
    """How many tokens a set has at most: bits behind the last token count, too."""
    return int(OCTET_SIZES[bits.view(np.uint8)].sum(dtype=np.int64))


def members(bits: Int32s, vocabulary: int) -> Ints:
    """The ids in a set, in ascending order."""
    words = np.flatnonzero(bits)  # few, of most sets: the others' bits are not looked at
    octets = bits[words].astype("<i4", copy=False).view(np.uint8)
    places, of_word = np.nonzero(np.unpackbits(octets, bitorder="little").reshape(-1, WORD_BITS))
    found: Ints = words[places] * WORD_BITS + of_word
    return found[found < vocabulary]


def _places(of: Ints, rows: Ints) -> tuple[Ints, Bools]:
    """Where those of `of` that are among `rows` stand in there, and which these are."""
    places = np.searchsorted(rows, of)
    kept = places < len(rows)
    kept[kept] = rows[places[kept]] == of[kept]
    return places[kept], kept
