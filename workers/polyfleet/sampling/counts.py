"""Which tokens a sequence holds and how often it generated each: what penalties are computed from.

Made once from prompt and answer, then told of each new token, so that a draw costs no more behind a long prompt than
its distinct tokens do, and nothing of that where the answer alone is penalised.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray


class TokenCounts:
    """`ids` [n], each distinct token of prompt and answer once, and `generated` [n], its count in the answer."""

    def __init__(self, prompt_ids: Sequence[int], generated_ids: Iterable[int] = ()) -> None:
        self._ids = np.unique(np.asarray(prompt_ids, dtype=np.int64))
        self._prompt = self._ids
        self._size = len(self._ids)
        self._generated = np.zeros(self._size, dtype=np.int64)
        self._places: dict[int, int] = {}  # of the answer's tokens among `ids`
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

    @property
    def answer(self) -> NDArray[np.int64]:
        """Which of `ids` stand in the answer."""
        return np.fromiter(self._places.values(), dtype=np.int64, count=len(self._places))

    def add(self, token_id: int) -> None:
        """One more token of the answer."""
        place = self._places.get(token_id)
        if place is None:
            place = self._places[token_id] = self._find(token_id)
        self._generated[place] += 1

    def remove(self, token_id: int) -> None:
        """Undo the last `add`, which was of this token."""
        place = self._places[token_id]
        self._generated[place] -= 1
        if not self._generated[place]:
            del self._places[token_id]
            self._size -= place >= len(self._prompt)  # then it stands last

    def _find(self, token_id: int) -> int:
        """The place of a token that is new in the answer."""
        place = int(np.searchsorted(self._prompt, token_id))
        if place < len(self._prompt) and self._prompt[place] == token_id:
            return place
        if self._size == len(self._ids):
            room = np.zeros(max(64, self._size), dtype=np.int64)
            self._ids = np.concatenate((self._ids, room))
            self._generated = np.concatenate((self._generated, room))
        self._ids[self._size] = token_id
        self._size += 1
        return self._size - 1
