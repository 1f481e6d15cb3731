"""The rows that stand in a sequence's prompt in the place of its images' tokens, and those of a step."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float32]
Places = tuple[NDArray[np.int32], Rows]


class SequenceImages:
    """Where a prompt has rows instead of tokens, and these as far as they are computed."""

    def __init__(self, positions: NDArray[np.int32], crops: list[NDArray[np.uint8]], digests: list[bytes], size: int):
        """`positions` [R], in order, of all crops of all images, whose rows have `size` columns."""
        self.positions = positions
        self.rows: Rows = np.zeros((len(positions), size), dtype=np.float32)
        self.done = 0  # rows that are computed
        self._per_crop = len(positions) // sum(map(len, crops))
        self._images = list(zip(digests, crops, strict=True))
        self._ends = np.cumsum([len(each) * self._per_crop for each in crops])  # of each image's rows
        self._digests = digests

    @property
    def ready(self) -> bool:
        """Whether all rows are there."""
        return self.done == len(self.rows)

    @property
    def next_image(self) -> tuple[bytes, NDArray[np.uint8], int]:
        """The first one that is not computed from end to end: its digest, its crops, how many of these are done."""
        at = int(np.searchsorted(self._ends, self.done, side="right"))
        digest, crops = self._images[at]
        return digest, crops, (self.done - (int(self._ends[at]) - len(crops) * self._per_crop)) // self._per_crop

    def add(self, rows: Rows) -> None:
        """The next ones."""
        self.rows[self.done : self.done + len(rows)] = rows
        self.done += len(rows)
        if self.ready:
            self._images.clear()  # their pixels

    def last(self, count: int) -> Rows:
        """So many of those that were added last."""
        return self.rows[self.done - count : self.done]

    def within(self, start: int, end: int) -> Places:
        """Positions from `start` to `end`, counted from there, and their rows."""
        first, last = np.searchsorted(self.positions, (start, end))
        return self.positions[first:last] - start, self.rows[first:last]

    def digests(self, start: int, end: int) -> list[bytes]:
        """Of the images that these positions show something of."""
        first, last = np.searchsorted(self.positions, (start, end))
        shown = np.searchsorted(self._ends, np.arange(first, last), side="right")
        return [self._digests[each] for each in np.unique(shown)]


def given_rows(shares: Iterable[tuple[SequenceImages | None, int, int]], first_rows: Iterable[int]) -> Places | None:
    """Rows of a step that images give, and what they give; None: no rows.

    Each share is a sequence's images and the positions [start, end) of it, and begins at its row of `first_rows`.
    """
    found: list[Places] = []
    for (images, start, end), row in zip(shares, first_rows, strict=False):
        if images is not None:
            places, rows = images.within(start, end)
            if len(places):
                found.append((places + np.int32(row), rows))
    if not found:
        return None
    places, rows = (np.concatenate(each) for each in zip(*found, strict=True))
    return places, rows
