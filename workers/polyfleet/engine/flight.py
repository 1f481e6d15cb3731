"""Flight: a step under way, as the Batcher remembers it."""

from dataclasses import dataclass, field

import numpy as np

from polyfleet.engine.executor import Pending, StepOutput
from polyfleet.engine.request import SampledToken, SequenceRequest
from polyfleet.engine.sequence import Place, Sequence
from polyfleet.sampling.draw import Bools


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
    decodes: list[Sequence]
    places: list[Place]  # of each of them
    parts: list[Part]
    pooled: list[int]  # sequences of the step
    launched_seconds: float
    masked: bool
    pending: Pending | None = None
    drawn: bool = False
    error: Exception | None = None
    doubtful: list[Place] = field(default_factory=list)  # whose rows were not good

    @property
    def num_rows(self) -> int:
        """Rows of all sequences."""
        return len(self.decodes) + sum(part.size for part in self.parts)

    @property
    def members(self) -> list[tuple[Sequence, Place]]:
        """All sequences, as they were placed."""
        decodes = list(zip(self.decodes, self.places, strict=True))
        return decodes + [(part.sequence, part.place) for part in self.parts]

    def masks(self) -> Bools | None:
        """[S, V] which tokens each draw may take; None where nobody limits any."""
        rows: list[Bools | None] = []
        drawing = [part.draws for part in self.parts]
        for (sequence, place), draws in zip(self.members, [True] * len(self.decodes) + drawing, strict=True):
            if draws:
                mask = sequence.mask if sequence.place == place else None
                rows.append(mask.allowed(sequence.generated_ids) if mask is not None else None)
        known = next((row for row in rows if row is not None), None)
        if known is None:
            return None
        everything = np.ones(len(known), dtype=bool)
        return np.stack([everything if row is None else row for row in rows])

    def check(self, output: StepOutput) -> None:
        """Raise RuntimeError for an output that does not fit this step."""
        num_decodes = len(self.decodes)
        num_draws = num_decodes + sum(part.draws for part in self.parts)
        shape = (len(output.token_ids), len(output.faults), 0 if output.pooled is None else len(output.pooled))
        wanted = (num_draws, num_decodes + len(self.parts), len(self.pooled))
        if shape != wanted:
            raise RuntimeError(f"the executor returned {shape} tokens, faults and pooled rows instead of {wanted}")


def sampled(output: StepOutput, drawn: int, request: SequenceRequest) -> SampledToken:
    """A drawn token with the logprobs that were asked for."""
    token_id, wanted, logprobs = int(output.token_ids[drawn]), request.num_logprobs, output.logprobs
    if wanted is None or logprobs is None:
        return SampledToken(token_id)
    ids, top = logprobs.top_ids[drawn][:wanted], logprobs.top[drawn][:wanted]
    return SampledToken(token_id, float(logprobs.drawn[drawn]), tuple(ids.tolist()), tuple(top.tolist()))


def first_line(error: BaseException | None) -> str:
    """An error's kind and its first line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
