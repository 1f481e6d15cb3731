"""Flight: a step under way, as the Batcher remembers it."""

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import NamedTuple

from polyfleet.engine.batching.cohort import Cohort
from polyfleet.engine.executor import FAULTS, Pending, StepOutput
from polyfleet.engine.step.needs import MASKS
from polyfleet.engine.step.plan import Share
from polyfleet.engine.step.sequence import Place, Sequence, TokenMask
from polyfleet.sampling.arrays import Int32s
from polyfleet.sampling.draw import Logprobs
from polyfleet.sampling.grammar import GrammarError
from polyfleet.sampling.masks import BARRED, WORD_BITS, Masks, all_tokens, allow, allows, bar, no_tokens
from polyfleet.wire.answers import INTERNAL, INVALID_ARGUMENT, SampledToken

MOST_DRAWS = 2**31  # of a sequence in one step, where no mask says less
MASK_FAILED = "the mask of allowed tokens failed"


class Failed(NamedTuple):
    """A sequence as it was placed, why it can't go on, and the google.rpc code of that."""

    sequence: Sequence
    place: Place
    why: str
    code: int = INTERNAL


@dataclass(slots=True)
class Part:
    """A sequence's share of a step: its place then, its rows, the tokens it draws, and the drafts among its rows.

    `targets` are tokens of its prompt, where each row looks up the one behind it.
    """

    sequence: Sequence
    place: Place
    size: int
    draws: int
    targets: Items[int] = ()
    drafts: Items[int] = ()
    most: int = MOST_DRAWS  # draws that count

    @property
    def num_draws(self) -> int:
        """Of the plan's draws, its own."""
        return len(self.targets) or self.draws

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives beside each of its draws; None: no logprobs."""
        request = self.sequence.request
        return request.prompt_logprobs if self.targets else request.logprobs

    def leave_out(self, index: int) -> None:
        """No draw from this one on counts: its mask can't be told, or bars the draft before it."""
        self.most = min(self.most, index)

    def verified(self, tokens: Items[SampledToken]) -> Items[SampledToken]:
        """Of its draws those that count: up to the first that is not what was drafted, that one included."""
        for index, draft in enumerate(self.drafts, 1):
            if tokens[index - 1].token_id != draft or index >= self.most:
                return tokens[:index]
        return tokens


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
        bits: dict[int, Int32s] = {}
        biases: dict[int, Mapping[int, float]] = {}
        for row, (part, index) in enumerate(self._draws()):
            sequence, drafts = part.sequence, part.drafts[:index]
            if part.targets:
                bits[row] = no_tokens(vocabulary_size)
                allow(bits[row], (part.targets[index],))
                continue
            if not sequence.needs & MASKS or sequence.place is not part.place:
                continue
            if drafts and sequence.mask is not None and not _allowed(bits.get(row - 1), drafts[-1]):
                part.leave_out(len(drafts))
                continue
            allowed, of_row, problem = _limits(part, drafts, vocabulary_size)
            if problem is None:
                bits |= {} if allowed is None else {row: allowed}
                biases[row] = of_row
            elif drafts:  # it is asked again where they prove right
                part.leave_out(len(drafts))
            else:
                self.unmasked += (Failed(sequence, part.place, *problem),)
        return Masks.of(bits, biases) if bits or any(biases.values()) else None

    def _draws(self) -> Iterator[tuple[Part, int]]:
        """Of each draw the part, and which of the part's draws it is."""
        for sequence, place in zip(self.decodes, self.decodes.places, strict=True):
            yield Part(sequence, place, 1, 1), 0
        for part in self.parts:
            for index in range(part.num_draws):
                yield part, index

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


def _limits(
    part: Part, drafts: Items[int], vocabulary_size: int
) -> tuple[Int32s | None, Mapping[int, float], tuple[str, int] | None]:
    """Of a draw behind drafts: the set of tokens that its mask leaves, biases by token, what is wrong and its code."""
    sequence, allowed = part.sequence, None
    ends = sequence.barred(part.draws - len(drafts))
    try:
        if sequence.mask is not None:
            generated_ids = [*sequence.generated_ids, *drafts] if drafts else sequence.generated_ids
            allowed = _filled(sequence.mask, generated_ids, ends, vocabulary_size)
        biases = {**sequence.request.logit_bias, **dict.fromkeys(ends, BARRED)}
        none_left = len(ends) == vocabulary_size if allowed is None else not allowed.any()
        return allowed, biases, (f"{MASK_FAILED}: it leaves no token", INTERNAL) if none_left else None
    except GrammarError as error:
        return None, {}, (str(error), INVALID_ARGUMENT)
    except Exception as error:
        return None, {}, (f"{MASK_FAILED}: {first_line(error)}", INTERNAL)


def _allowed(bits: Int32s | None, draft: int) -> bool:
    """Whether the draw before a draft is known to have a mask, and may be that draft."""
    return bits is not None and allows(bits, draft)


def _filled(mask: TokenMask, generated_ids: Items[int], barred: Items[int], vocabulary_size: int) -> Int32s:
    """The set of tokens that a mask leaves, less those that are barred."""
    bits = all_tokens(vocabulary_size)
    mask.fill(generated_ids, bits)
    bar(bits, (*barred, *range(vocabulary_size, len(bits) * WORD_BITS)))
    return bits


def with_logprobs(token_ids: Items[int], logprobs: Logprobs, wanted: Items[int | None]) -> list[SampledToken]:
    """Drawn tokens, each with as many alternatives as are wanted; None: without logprobs."""
    drawn, top_ids, top = logprobs.drawn.tolist(), logprobs.top_ids.tolist(), logprobs.top.tolist()
    return [
        SampledToken(token_id)
        if number is None
        else SampledToken(token_id, drawn[row], tuple(top_ids[row][:number]), tuple(top[row][:number]))
        for row, (token_id, number) in enumerate(zip(token_ids, wanted, strict=True))
    ]


def first_line(error: BaseException | None) -> str:
    """An error's kind and its first line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
