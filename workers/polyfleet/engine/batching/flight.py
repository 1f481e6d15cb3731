"""Flight: a step under way, as the Batcher remembers it."""

from collections.abc import Sequence as Items

from polyfleet.engine.batching.cohort import Cohort
from polyfleet.engine.batching.limits import Limits
from polyfleet.engine.batching.parts import Failed, Part
from polyfleet.engine.executor import FAULTS, Pending, StepOutput
from polyfleet.engine.step.rows import Share
from polyfleet.engine.step.sequence import Place, Sequence
from polyfleet.sampling.draw import Logprobs
from polyfleet.sampling.masks import Masks
from polyfleet.wire.answers import SampledToken


class Flight:
    """A step under way. First come the sequences that decode, with one row and one draw each, then the other parts."""

    doubtful: tuple[Place, ...] = ()  # whose rows were not good
    unmasked: tuple[Failed, ...] = ()  # whose mask gave none

    def __init__(
        self,
        number: int,
        decodes: Cohort,
        shares: Items[Share],
        pooled: Items[int],
        launched_seconds: float,
        pending: Pending | None,
        error: Exception | None,
        *,
        masked: bool,
    ) -> None:
        """A step takes off: its rows count as computed, and its draws as under way.

        `pooled` are which of its sequences; `masked`: whether some draw may not take every token as it is.
        """
        self.number, self.decodes, self.pooled, self.launched_seconds = number, decodes, pooled, launched_seconds
        self.pending, self.error, self.drawn, self.masked = pending, error, False, masked
        for sequence in decodes:  # as `Sequence.plan` does, at a third of its cost
            sequence.last_step = number
            sequence.num_computed += 1
            sequence.num_tokens += 1
        self.parts = [_part(each, size, number) for each, size in shares] if shares else []

    @property
    def rows(self) -> tuple[int, int, int]:
        """Sequences that decode, rows of prompts, and of drafts."""
        drafts = [len(part.drafts) for part in self.parts if part.drafts]
        prompt_rows = sum([part.size for part in self.parts if not part.drafts])
        return len(self.decodes) + len(drafts), prompt_rows, sum(drafts)

    @property
    def members(self) -> list[tuple[Sequence, Place]]:
        """All sequences, as they were placed."""
        decodes = list(zip(self.decodes, self.decodes.places, strict=True))
        return decodes + [(part.sequence, part.place) for part in self.parts]

    @property
    def waits(self) -> bool:
        """Whether its draws wait for the tokens before, which masks are asked about."""
        return self.masked and any(sequence.mask is not None for sequence, _ in self.members)

    def masks(self, vocabulary_size: int) -> Masks | None:
        """Which tokens its draws may not take as they are; None: all take all. `unmasked` are whose mask fails."""
        limits = Limits(vocabulary_size)
        limits.ask_decodes(zip(self.decodes, self.decodes.places, strict=True))
        row = len(self.decodes)
        for part in self.parts:
            limits.ask_part(part, row)
            row += part.num_draws
        self.unmasked = tuple(limits.failed)
        return limits.masks

    def failed(self, faults: Items[int]) -> Items[Failed]:
        """Whose rows or masks were not good; notes in `doubtful` whose rows were not."""
        if not any(faults):
            return self.unmasked
        faulty = [(*member, fault) for member, fault in zip(self.members, faults, strict=True) if fault]
        unknown = "the executor reported a fault that there is not"
        found = [Failed(sequence, place, FAULTS.get(fault, unknown)) for sequence, place, fault in faulty]
        self.doubtful = tuple(each.place for each in found)
        return (*found, *self.unmasked)

    def tokens(self, output: StepOutput, vocabulary_size: int) -> list[SampledToken]:
        """The drawn tokens, with the logprobs that were asked for.

        Raises RuntimeError for an output that does not fit this step.
        """
        num_draws = num_sequences = len(self.decodes)
        if self.parts:
            num_draws += sum(part.num_draws for part in self.parts)
            num_sequences += len(self.parts)
        token_ids: list[int] = output.token_ids.tolist()
        pooled = 0 if output.pooled is None else len(output.pooled)
        if len(token_ids) != num_draws or len(output.faults) != num_sequences or pooled != len(self.pooled):
            shape, wanted = (len(token_ids), len(output.faults), pooled), (num_draws, num_sequences, len(self.pooled))
            raise RuntimeError(f"the executor returned {shape} tokens, faults and pooled rows instead of {wanted}")
        if token_ids and (min(token_ids) < 0 or max(token_ids) >= vocabulary_size):  # one below 0 would mean a slot
            raise RuntimeError(f"the executor drew tokens {min(token_ids)} to {max(token_ids)} of {vocabulary_size}")
        if output.logprobs is None:
            return list(map(SampledToken, token_ids))
        of_draws = [each.request.logprobs for each in self.decodes]
        of_draws += [part.num_logprobs for part in self.parts for _ in range(part.num_draws)]
        return with_logprobs(token_ids, output.logprobs, of_draws)


def _part(sequence: Sequence, size: int, step: int) -> Part:
    """The next `size` tokens of a sequence, that a step computes."""
    first = sequence.num_computed
    targets = sequence.tokens(first + 1, first + 1 + size) if sequence.scoring else ()
    drafts, sequence.drafts = sequence.drafts, ()
    return Part(sequence, sequence.running_place, size, sequence.plan(size, step), targets, drafts)


def with_logprobs(token_ids: Items[int], logprobs: Logprobs, wanted: Items[int | None]) -> list[SampledToken]:
    """Drawn tokens, each with as many alternatives as are wanted; None: without logprobs."""
    drawn, top_ids, top = logprobs.drawn.tolist(), logprobs.top_ids.tolist(), logprobs.top.tolist()
    return [
        SampledToken(token_id)
        if number is None
        else SampledToken(token_id, drawn[row], tuple(top_ids[row][:number]), tuple(top[row][:number]))
        for row, (token_id, number) in enumerate(zip(token_ids, wanted, strict=True))
    ]
