"""Cohort: sequences that decode together."""

from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Sequence as Items
from typing import Any, NamedTuple

from numpy.typing import NDArray

from polyfleet.engine.step.sequence import Place, Sequence

NEVER = -1  # moves of a ledger


class _Usual(NamedTuple):
    """What is known ahead of all steps in which a cohort's sequences do no more than take a token each."""

    sequence_ids: list[str]
    taken: list[list[int]]  # of each the tokens that it has generated
    ends: frozenset[int]  # tokens that end some of them
    last: int  # tokens that the first has generated when some update may say more
    filled: dict[int, list[Sequence]]  # who has full blocks, by the first's settled tokens modulo a block's


class Cohort(tuple[Sequence, ...]):
    """Running sequences in the order of a step's first rows, of which each has one and draws one token.

    While steps have the same ones, they have the same Cohort: what is the same for all of these steps is kept with it.
    """

    places: list[Place]  # of each
    num_moves: int  # of the ledger; while it makes no more, all are in their places
    drawn: NDArray[Any] | None  # the tokens of the last step that was collected, its own first; None: there is none yet

    def __new__(cls, sequences: Iterable[Sequence], num_moves: int = NEVER) -> "Cohort":
        """As a tuple of them."""
        return super().__new__(cls, sequences)

    def __init__(self, sequences: Iterable[Sequence], num_moves: int = NEVER) -> None:
        self.places = [each.place for each in self]  # type: ignore[misc]
        self.num_moves, self.drawn = num_moves, None
        self._usual: _Usual | None = None

    def take(self, token_ids: Items[int], block_size: int) -> Items[Sequence] | None:
        """Give each, all in their places, the token that it drew; says whose blocks are full then.

        None, and nothing given, where one of them may end by it, or where this is the first step of theirs.
        """
        if self.drawn is None:
            return None  # it takes as long to find out as it saves in one step
        usual = self._usual = self._usual or self._known_ahead(block_size)
        if len(usual.taken[0]) >= usual.last or not usual.ends.isdisjoint(token_ids):
            return None
        for sequence, taken, token_id in zip(self, usual.taken, token_ids, strict=True):
            sequence.num_settled += 1
            taken.append(token_id)
        return usual.filled.get(self[0].num_settled % block_size, ())

    @property
    def sequence_ids(self) -> list[str]:
        """Of each, once they have taken tokens."""
        return self._usual.sequence_ids if self._usual else [each.sequence_id for each in self]

    def _known_ahead(self, block_size: int) -> _Usual:
        taken = [each.generated_ids for each in self]
        usual = min([each.last_usual - len(each.generated_ids) for each in self])
        filled: dict[int, list[Sequence]] = defaultdict(list)
        first = self[0].num_settled
        for each in self:
            filled[(first - each.num_settled) % block_size].append(each)
        ends = frozenset[int]().union(*{each.ends for each in self})
        return _Usual([each.sequence_id for each in self], taken, ends, len(taken[0]) + usual, dict(filled))
