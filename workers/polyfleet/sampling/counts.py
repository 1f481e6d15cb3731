"""Which tokens a sequence holds and how often it generated each: what penalties are computed from.

Made once from prompt and answer, then told of each new token, so that a draw costs no more behind a long prompt.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray


class TokenCounts:
    """`ids` [n], each distinct token of prompt and answer once, and `generated` [n], its count in the answer."""

    def __init__(self, prompt_ids: Sequence[int], generated_ids: Iterable[int] = ()) -> None:
        distinct = np.unique(np.asarray(prompt_ids, dtype=np.int64))
        self._size = len(distinct)
        self._ids = distinct
        self._generated = np.zeros(self._size, dtype=np.int64)
        self._places = {int(token_id): place for place, token_id in enumerate(distinct)}
        for token_id in generated_ids:
            self.add(token_id)

    @property
    def ids(self) -> NDArray[np.int64]:
        """Distinct tokens of prompt and answer."""
        return self._ids[: self._size]

    @property
    def generated(self) -> NDArray[np.int64]:
        """How often each of `ids` stands in the answer."""
        return self._generated[: self._size]

    def add(self, token_id: int) -> None:
        """One more token of the answer."""
        place = self._places.get(token_id)
        if place is None:
            place = self._append(token_id)
        self._generated[place] += 1

    def _append(self, token_id: int) -> int:
        if self._size == len(self._ids):
            room = max(64, self._size)
            self._ids = np.concatenate((self._ids, np.zeros(room, dtype=np.int64)))
            self._generated = np.concatenate((self._generated, np.zeros(room, dtype=np.int64)))
        place = self._places[token_id] = self._size
        self._ids[place] = token_id
        self._size += 1
        return place
