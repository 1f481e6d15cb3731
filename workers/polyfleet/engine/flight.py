"""Flight: a step under way, as the Batcher remembers it."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from polyfleet.engine.executor import FAULTS, Fault, Pending, StepOutput
from polyfleet.engine.plan import Share
from polyfleet.engine.sequence import Place, Sequence
from polyfleet.sampling.draw import Bools
from polyfleet.wire.answers import SampledToken, plain_token
from polyfleet.wire.requests import SequenceRequest


@dataclass(slots=True)
class Part:
    """A sequence's share of a step: its place then, its rows, and whether it draws."""

    sequence: Sequence
    place: Place
    size: int
    draws: bool


@dataclass(slots=True)
class Flight:
    """A step under way. First come the sequences that decode, with one row and one draw each, then the other parts."""

    number: int
    decodes: tuple[Sequence, ...]
    places: list[Place]  # of each of them
    parts: list[Part]
    pooled: list[int]  # sequences of the step
    launched_seconds: float
    masked: bool  # whether some draw may not take every token
    pending: Pending | None = None
    drawn: bool = False
    error: Exception | None = None
    doubtful: list[Place] = field(default_factory=list)  # whose rows were not good
    unmasked: list[tuple[Sequence, Place, str]] = field(default_factory=list)  # whose mask gave none, and why

    @classmethod
    def of(
        cls,
        number: int,
        decodes: tuple[Sequence, ...],
        shares: Iterable[Share],
        pooled: list[int],
        now: float,
        *,
        masked: bool,
    ) -> "Flight":
        """A step takes off: its rows count as computed, and its draws as under way."""
        for sequence in decodes:  # as `Sequence.plan` does, at a third of its cost
            sequence.last_step = number
            sequence.num_computed += 1
            sequence.num_tokens += 1
        parts = [Part(each, each.running_place, size, each.plan(size, number)) for each, size in shares]
        places: list[Place] = [each.place for each in decodes]  # type: ignore[misc]
        return cls(number, decodes, places, parts, pooled, now, masked)

    @property
    def num_prompt_rows(self) -> int:
        """Rows of the sequences that do not decode."""
        return sum([part.size for part in self.parts]) if self.parts else 0

    @property
    def members(self) -> list[tuple[Sequence, Place]]:
        """All sequences, as they were placed."""
        decodes = list(zip(self.decodes, self.places, strict=True))
        return decodes + [(part.sequence, part.place) for part in self.parts]

    @property
    def waits(self) -> bool:
        """Whether its draws wait for the tokens before, which masks are asked about."""
        return self.masked and any(sequence.mask is not None for sequence, _ in self.members)

    def masks(self, vocabulary_size: int) -> Bools | None:
        """[S, V] which tokens each draw may take; None where nobody limits any. `unmasked` are whose mask fails."""
        rows: list[Bools | None] = []
        drawing = [part.draws for part in self.parts]
        for (sequence, place), draws in zip(self.members, [True] * len(self.decodes) + drawing, strict=True):
            if draws:
                rows.append(self._allowed(sequence, place, vocabulary_size))
        known = next((row for row in rows if row is not None), None)
        if known is None:
            return None
        everything = np.ones(len(known), dtype=bool)
        return np.stack([everything if row is None else row for row in rows])

    def _allowed(self, sequence: Sequence, place: Place, vocabulary_size: int) -> Bools | None:
        """What a sequence may draw; None for all. What its mask raises fails it alone."""
        if sequence.place is not place:
            return None
        try:
            given = sequence.allowed()
            if given is None:
                return None
            allowed = np.asarray(given)
            if allowed.dtype != bool or allowed.ndim != 1:
                problem = f"it is no row of truth values, but {allowed.dtype} {list(allowed.shape)}"
            elif vocabulary_size and len(allowed) != vocabulary_size:
                problem = f"it speaks of {len(allowed)} tokens, not {vocabulary_size}"
            elif not allowed.any():
                problem = "it leaves no token"
            else:
                return allowed
        except Exception as error:
            problem = first_line(error)
        self.unmasked.append((sequence, place, f"the mask of allowed tokens failed: {problem}"))
        return None

    def broken(self, output: StepOutput) -> list[tuple[Sequence, Place, str]]:
        """Whose rows or masks were not good, and why; notes in `doubtful` whose rows were not."""
        faults: list[int] = output.faults.tolist()
        if not any(faults):
            return self.unmasked
        members = zip(self.members, faults, strict=True)
        found = [(sequence, place, FAULTS[Fault(fault)]) for (sequence, place), fault in members if fault]
        self.doubtful += [place for _, place, _ in found]
        return found + self.unmasked

    def tokens(self, output: StepOutput) -> list[SampledToken]:
        """The drawn tokens, with the logprobs that were asked for."""
        if output.logprobs is None:
            return list(map(plain_token, output.token_ids.tolist()))
        drawing = [*self.decodes, *(part.sequence for part in self.parts if part.draws)]
        return [sampled(output, drawn, each.request) for drawn, each in enumerate(drawing)]

    def check(self, output: StepOutput) -> None:
        """Raise RuntimeError for an output that does not fit this step."""
        num_decodes = num_draws = len(self.decodes)
        if self.parts:
            num_draws += sum(part.draws for part in self.parts)
        shape = (len(output.token_ids), len(output.faults), 0 if output.pooled is None else len(output.pooled))
        wanted = (num_draws, num_decodes + len(self.parts), len(self.pooled))
        if shape != wanted:
            raise RuntimeError(f"the executor returned {shape} tokens, faults and pooled rows instead of {wanted}")


def sampled(output: StepOutput, drawn: int, request: SequenceRequest) -> SampledToken:
    """A drawn token with the logprobs that were asked for."""
    token_id, wanted, logprobs = int(output.token_ids[drawn]), request.logprobs, output.logprobs
    if wanted is None or logprobs is None:
        return plain_token(token_id)
    ids, top = logprobs.top_ids[drawn][:wanted], logprobs.top[drawn][:wanted]
    return SampledToken(token_id, float(logprobs.drawn[drawn]), tuple(ids.tolist()), tuple(top.tolist()))


def first_line(error: BaseException | None) -> str:
    """An error's kind and its first line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
