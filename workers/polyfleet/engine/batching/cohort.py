"""Cohort: sequences that decode together."""

from collections.abc import Iterable
from typing import Any

from numpy.typing import NDArray

from polyfleet.engine.step.sequence import Place, Sequence


class Cohort(tuple[Sequence, ...]):
    """Running sequences in the order of a step's first rows, of which each has one and draws one token.

    While steps have the same ones, they have the same Cohort: what is the same for all of these steps is kept with it.
    """

    places: list[Place]  # of each
    drawn: NDArray[Any] | None  # the tokens of the last step that was collected, its own first; None: there is none yet

    def __init__(self, sequences: Iterable[Sequence]) -> None:
        self.places = [each.running_place for each in self]
        self.drawn = None
