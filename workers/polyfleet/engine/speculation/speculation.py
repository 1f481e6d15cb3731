"""Speculation: which sequences have tokens drafted that a step then verifies, several at once, and how many.

A draft is accepted where it is what its position draws anyway, greedily or by its uniform: tokens are the same as
without drafts. So all that is to be decided is whether they come sooner.
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from math import inf
from typing import Protocol

from polyfleet.engine.executor import Executor
from polyfleet.engine.speculation.ngrams import NgramDrafter
from polyfleet.engine.step.sequence import Sequence
from polyfleet.wire.options import DRAFT_TOKENS, NGRAM_MAX, NGRAM_MIN, EngineOptions

LEAST_CHANCE = 0.15  # below which no draft is made, however little it seems to cost
LEARNED, PLAIN_LEARNED = 0.1, 0.2  # of what is known, from one step: of draft rows, and of steps without
OUTLIER = 2.0  # times what is known of such steps: no step counts as more
FADING = 0.99  # of what a draft row is taken to cost, with each step without: in the end it is tried again


class Drafter(Protocol):
    """Guesses tokens."""

    def chances(self, sequence: Sequence, number: int) -> Items[float]:
        """How likely each of its next drafts, `number` at most, is to be drawn where those before it were."""
        ...

    def draft(self, wanted: Mapping[Sequence, int]) -> Mapping[Sequence, Items[int]]:
        """So many drafts for each of these sequences, or fewer, or none."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """A sequence has ended."""
        ...


class DraftCost:
    """What rows of drafts cost, learned from steps without prompts: how much longer these take than others."""

    def __init__(self) -> None:
        self._plain: dict[int, float] = {}  # seconds of a step without drafts, by the bits of its sequences' number
        self._row: float | None = None  # seconds of a draft

    def observe(self, num_sequences: int, num_drafts: int, seconds: float) -> None:
        """A step took so long, the making of its drafts included."""
        bits = num_sequences.bit_length()
        plain = self._plain.get(bits)
        if not num_drafts:
            self._plain[bits] = seconds if plain is None else _learned(plain, seconds, PLAIN_LEARNED)
            if self._row is not None:
                self._row *= FADING
        elif plain is not None:
            extra = min(max(0.0, seconds - plain) / num_drafts, plain)
            self._row = extra if self._row is None else self._row + LEARNED * (extra - self._row)

    def least_chance(self, num_sequences: int) -> float:
        """How likely a draft must be, in a step of so many sequences, lest it costs more than it brings.

        In the time that a step without takes each of its sequences comes a token further.
        """
        if not self._plain:
            return inf  # the next step is to tell
        bits = num_sequences.bit_length()
        plain = self._plain[min(self._plain, key=lambda known: abs(known - bits))]
        if self._row is None or not plain:
            return LEAST_CHANCE
        return max(LEAST_CHANCE, self._row * num_sequences / plain)


class Speculator:
    """Chooses for each step who gets drafts, and how many: as long as one more likely brings more than it costs."""

    def __init__(self, drafter: Drafter, most: int, *, penalised: bool = True) -> None:
        """`most` drafts of a sequence in a step. `penalised`: whether draws behind drafts can be penalised."""
        self._drafter = drafter
        self._most = most
        self._penalised = penalised
        self._cost = DraftCost()

    def draft(self, sequences: Items[Sequence], room: int, grow: Callable[[Sequence, int], bool]) -> list[Sequence]:
        """Give drafts to those of the sequences that decode in the next step for whom they pay; says to whom.

        At most `room` drafts in all. `grow` finds blocks for drafts of a sequence, or does not.
        """
        least, wanted = self._cost.least_chance(len(sequences)), dict[Sequence, int]()
        for each in sequences:
            each.drafts = ()
            number = 0 if each.num_drawing else self._number(each, room, least)
            if number and grow(each, number):
                wanted[each] = number
                room -= number
        for each, drafts in self._drafter.draft(wanted).items() if wanted else ():
            each.drafts = _cut(drafts, each.ends)
        return [each for each in wanted if each.drafts]

    def waits(self, sequence: Sequence, num_sequences: int) -> bool:
        """Whether the tokens that a sequence is having drawn are worth waiting for, since then it can have drafts."""
        return self._number(sequence, self._most, self._cost.least_chance(num_sequences)) > 0

    def observe(self, num_sequences: int, num_prompt_rows: int, num_drafts: int, seconds: float) -> None:
        """A step of so many sequences that decode took so long."""
        if num_sequences and not num_prompt_rows:
            self._cost.observe(num_sequences, num_drafts, seconds)

    def forget(self, sequence: Sequence) -> None:
        """A sequence has ended."""
        self._drafter.forget(sequence)

    def _number(self, sequence: Sequence, room: int, least: float) -> int:
        """How many drafts pay."""
        most = min(self._most, room, sequence.longest - sequence.num_tokens - 1)
        if most <= 0 or least > 1 or not (self._penalised or not sequence.request.sampling.penalised):
            return 0
        chance, number = 1.0, 0
        for each in self._drafter.chances(sequence, most):
            chance *= each
            if chance < least:
                break
            number += 1
        return number


def drafts_of(options: EngineOptions) -> int:
    """Drafts of a sequence in a step at most; 0: nothing drafts."""
    return 0 if options.speculation == "off" else options.draft_tokens or DRAFT_TOKENS


def speculator_of(options: EngineOptions, executor: Executor, model: Drafter | None = None) -> Speculator | None:
    """What the options ask for, and where that is a model, over this one; None where it is nothing."""
    if not drafts_of(options):
        return None
    drafter = model or NgramDrafter(options.ngram_min or NGRAM_MIN, options.ngram_max or NGRAM_MAX)
    return Speculator(drafter, drafts_of(options), penalised=executor.depth == 1)  # counts are the host's then


def shown(options: EngineOptions) -> str:
    """What drafts, for people."""
    name = options.draft_model if options.speculation == "draft" else options.speculation
    return f"{name}, up to {drafts_of(options)} tokens a step" if drafts_of(options) else ""


def _learned(known: float, seconds: float, share: float) -> float:
    return known + share * (min(seconds, OUTLIER * known) - known) if known else seconds


def _cut(drafts: Items[int], ends: frozenset[int]) -> Items[int]:
    """The drafts before the first that would end their sequence."""
    return next((drafts[:index] for index, draft in enumerate(drafts) if draft in ends), drafts)
