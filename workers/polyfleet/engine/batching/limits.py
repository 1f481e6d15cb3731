"""Which tokens the draws of a step may not take as they are, once the tokens before are known."""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Items

import numpy as np

from polyfleet.engine.batching.parts import Failed, Part, first_line
from polyfleet.engine.step.needs import MASKS
from polyfleet.engine.step.sequence import Place, Sequence
from polyfleet.sampling.arrays import Int32s
from polyfleet.sampling.grammar import GrammarError
from polyfleet.sampling.masks import BARRED, WORD_BITS, Masks, all_tokens, allow, allows, bar, no_tokens
from polyfleet.wire.answers import INTERNAL, INVALID_ARGUMENT

MASK_FAILED = "the mask of allowed tokens failed"
NO_TOKENS_LEFT = f"{MASK_FAILED}: it leaves no token"

Asked = tuple[int, Sequence, Items[int]]  # of a draw its row, whose it is, and the tokens generated before it


class Limits:
    """What is known of the draws of one step so far."""

    def __init__(self, vocabulary_size: int) -> None:
        self.failed: list[Failed] = []  # whose mask gives none
        self._vocabulary_size = vocabulary_size
        self._bits: dict[int, Int32s] = {}  # by row
        self._biases: dict[int, Mapping[int, float]] = {}

    @property
    def masks(self) -> Masks | None:
        """Of all rows; None: all take all."""
        biased = any(self._biases.values())
        return Masks.of(self._bits, self._biases) if self._bits or biased else None

    def ask_decodes(self, decodes: Iterable[tuple[Sequence, Place]]) -> None:
        """The draws of sequences with one row each, the step's first ones; of those that have left nothing is asked."""
        asked: list[Asked] = []
        places: list[Place] = []
        for row, (sequence, place) in enumerate(decodes):
            if sequence.needs & MASKS and sequence.place is place:
                asked.append((row, sequence, sequence.generated_ids))
                places.append(place)
        if asked:
            problems = self._limit(asked, [sequence.barred() for _, sequence, _ in asked])
            for (row, sequence, _), place in zip(asked, places, strict=True):
                if row in problems:
                    self.failed.append(Failed(sequence, place, *problems[row]))

    def ask_part(self, part: Part, first: int) -> None:
        """The draws of another sequence, whose rows of draws begin there."""
        sequence = part.sequence
        for index in range(part.num_draws):
            row, drafts = first + index, part.drafts[:index]
            if part.targets:
                self._bits[row] = no_tokens(self._vocabulary_size)
                allow(self._bits[row], (part.targets[index],))
                continue
            if not sequence.needs & MASKS or sequence.place is not part.place:
                continue
            if drafts and sequence.mask is not None and not _allowed(self._bits.get(row - 1), drafts[-1]):
                part.leave_out(len(drafts))
                continue
            generated_ids = [*sequence.generated_ids, *drafts] if drafts else sequence.generated_ids
            problems = self._limit([(row, sequence, generated_ids)], [sequence.barred(part.draws - index)])
            if problems and drafts:  # it is asked again where they prove right
                part.leave_out(len(drafts))
            elif problems:
                self.failed.append(Failed(sequence, part.place, *problems[row]))

    def _limit(self, asked: Items[Asked], ends: Items[Items[int]]) -> dict[int, tuple[str, int]]:
        """Note the sets and biases of these draws, each less the tokens that would end it too early.

        What is wrong with a row of which nothing is noted, and the code of that.
        """
        masked = [each for each in asked if each[1].mask is not None]
        sets = np.repeat(all_tokens(self._vocabulary_size)[None], len(masked), axis=0)
        problems = _fill(masked, sets)
        if behind := self._vocabulary_size % WORD_BITS:
            sets[:, -1] &= np.int32((1 << behind) - 1)
        places = {row: place for place, (row, _, _) in enumerate(masked)}
        for (row, _, _), of_row in zip(asked, ends, strict=True):
            if of_row and row in places:
                bar(sets[places[row]], of_row)
        left: list[bool] = np.logical_or.reduce(sets, axis=1).tolist()
        for (row, sequence, _), of_row in zip(asked, ends, strict=True):
            place = places.get(row)
            if row in problems:
                continue
            if not left[place] if place is not None else len(of_row) == self._vocabulary_size:
                problems[row] = NO_TOKENS_LEFT, INTERNAL
                continue
            if place is not None:
                self._bits[row] = sets[place]
            if of_row or sequence.request.logit_bias:
                self._biases[row] = {**sequence.request.logit_bias, **dict.fromkeys(of_row, BARRED)}
        return problems


def _fill(masked: Items[Asked], sets: Int32s) -> dict[int, tuple[str, int]]:
    """Fill the sets of these draws; what went wrong, by row of the step: an error of one leaves the others alone."""
    problems: dict[int, tuple[str, int]] = {}
    for (row, sequence, generated_ids), of_row in zip(masked, sets, strict=True):
        try:
            if sequence.mask is not None:
                sequence.mask.fill(generated_ids, of_row)
        except GrammarError as error:
            problems[row] = str(error), INVALID_ARGUMENT
        except Exception as error:
            problems[row] = f"{MASK_FAILED}: {first_line(error)}", INTERNAL
    return problems


def _allowed(bits: Int32s | None, draft: int) -> bool:
    """Whether the draw before a draft is known to have a mask, and may be that draft."""
    return bits is not None and allows(bits, draft)
