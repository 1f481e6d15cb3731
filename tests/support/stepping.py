"""Driving an executor without a Batcher: sequences computed piece by piece, every piece's results kept."""

import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyfleet.engine.batching.flight import with_logprobs
from polyfleet.engine.executor import Capacity, Executor, Fault, Pending, StepOutput
from polyfleet.engine.step.plan import Assembler
from polyfleet.engine.step.sequence import Sequence as EngineSequence
from polyfleet.sampling.masks import Masks
from polyfleet.wire.answers import SampledToken
from polyfleet.wire.requests import Pooling, SequenceRequest
from polyfleet.wire.sampling import GREEDY, SamplingParams

NO_BIAS: Mapping[int, float] = {}
TIMEOUT = 60.0
GARBAGE = -77_777  # written over plans behind their launch: an executor that kept a view fails


@dataclass(frozen=True)
class Result:
    """What a piece came to."""

    fault: Fault
    token: SampledToken | None = None
    pooled: NDArray[Any] | None = None


def logprobs_of(result: Result) -> NDArray[np.float64]:
    """The reported logprobs in order of id, of a draw that reports all of them."""
    assert result.token is not None
    assert result.fault is Fault.NONE
    out = np.empty(len(result.token.top_ids))
    out[list(result.token.top_ids)] = result.token.top_logprobs
    return out


@dataclass
class Run:
    """One sequence that is computed piece by piece; the pieces of several runs make a step."""

    sequence: EngineSequence
    draws: bool  # whether each piece draws (or pools its last row), else none does
    results: list[Result] = field(default_factory=list)  # one for each piece
    ends: list[int] = field(default_factory=list)  # tokens computed by the end of each piece

    @property
    def num_tokens(self) -> int:
        """Prompt and generated tokens."""
        return len(self.sequence.request.prompt_ids) + len(self.sequence.generated_ids)

    @property
    def done(self) -> bool:
        """Whether all tokens are computed."""
        return self.sequence.num_computed == self.num_tokens

    def append(self, token_id: int) -> None:
        """A generated token."""
        self.sequence.generated_ids.append(token_id)

    def next_piece(self, size: int) -> tuple[EngineSequence, int]:
        """The share of the next `size` tokens, or of as many as are left."""
        size = min(size, self.num_tokens - self.sequence.num_computed)
        self.ends.append(self.sequence.num_computed + size)
        self.sequence.num_tokens = self.ends[-1] + (not self.draws)
        return self.sequence, size


Piece = tuple[Run, int]  # and how many of its next tokens are computed


@dataclass
class _Flight:
    pending: Pending
    runs: list[Run]
    draws: list[int]  # which of the runs
    pooled: list[int]


class Driver:
    """Allocates an executor's memory, hands out slots and shuffled blocks, and has it compute steps.

    Behind every launch it scribbles over the plan.
    """

    def __init__(
        self,
        executor: Executor,
        num_blocks: int,
        block_size: int = 16,
        max_sequences: int = 64,
        step_tokens: int = 4096,
        seed: int = 0,
    ) -> None:
        self.executor = executor
        self.capacity = Capacity(num_blocks, block_size, max_sequences, num_blocks, step_tokens)
        self.assembler = Assembler(max_sequences, num_blocks)
        self._free = list(range(num_blocks))
        random.Random(seed).shuffle(self._free)
        self._slots = list(range(max_sequences))
        random.Random(seed).shuffle(self._slots)
        self._flights: deque[_Flight] = deque()
        executor.allocate(self.capacity)

    def begin(
        self,
        token_ids: Sequence[int],
        *,
        generated_ids: Sequence[int] = (),
        params: SamplingParams = GREEDY,
        num_logprobs: int | None = None,
        logit_bias: Mapping[int, float] = NO_BIAS,
        pooling: Pooling | None = None,
        draws: bool = True,
        room: int = 0,
        blocks: Sequence[int] | None = None,
    ) -> Run:
        """A sequence in a slot, with blocks for its tokens and `room` more, or with these blocks."""
        request = SequenceRequest(
            "run",
            tuple(token_ids),
            params,
            generated_ids=tuple(generated_ids),
            logprobs=num_logprobs,
            logit_bias=logit_bias,
            pooling=pooling,
        )
        sequence = EngineSequence(request, 0, 0.0, 2**31)
        needed = -(-(sequence.num_tokens + room) // self.capacity.block_size)
        sequence.blocks = [self._free.pop() for _ in range(needed)] if blocks is None else list(blocks)
        sequence.place = (self._slots.pop(), 1)
        self.assembler.start(sequence.slot, sequence)
        return Run(sequence, draws)

    def end(self, run: Run, *, keep_blocks: bool = False) -> None:
        """Give the slot and the blocks back."""
        self._slots.append(run.sequence.slot)
        if not keep_blocks:
            self._free += run.sequence.blocks
        run.sequence.place = None

    def step(self, pieces: Sequence[Piece], masks: Masks | None = None) -> StepOutput:
        """One step from start to end; each run gets its result. Masks are in the order of pieces of one token first."""
        self.launch(pieces, masks)
        return self.collect()

    def launch(self, pieces: Sequence[Piece], masks: Masks | None = None) -> None:
        """Launch a step and start its draws, with the plan scribbled over in between."""
        shares = [(run, run.next_piece(size)) for run, size in pieces]
        shares.sort(key=lambda share: share[1][1] > 1)
        plan = self.assembler.assemble([share for _, share in shares])
        draws, pooled = plan.draw_sequences.tolist(), plan.pooled.tolist()
        pending = self.executor.launch(plan)
        self.assembler.accepted()
        for _, (sequence, size) in shares:
            sequence.num_computed += size
        kept = plan.block_tables.copy(), plan.sampling.copy()
        plan.numbers[:] = plan.block_tables[:] = plan.changed[:] = GARBAGE
        plan.sampling[:] = np.zeros(1, dtype=plan.sampling.dtype)
        self.executor.draw(pending, masks)
        plan.block_tables[:], plan.sampling[:] = kept
        self._flights.append(_Flight(pending, [run for run, _ in shares], draws, pooled))

    def collect(self) -> StepOutput:
        """Wait for the oldest step."""
        flight = self._flights.popleft()
        output = self.executor.collect(flight.pending, TIMEOUT)
        pooled = dict(zip(flight.pooled, () if output.pooled is None else output.pooled, strict=True))
        wanted = [flight.runs[index].sequence.request.logprobs for index in flight.draws]
        drawn: list[int] = output.token_ids.tolist()
        found = [SampledToken(each) for each in drawn]
        if output.logprobs is not None:
            found = with_logprobs(drawn, output.logprobs, wanted)
        tokens = dict(zip(flight.draws, found, strict=True))
        for index, (run, fault) in enumerate(zip(flight.runs, output.faults.tolist(), strict=True)):
            run.results.append(Result(Fault(fault), tokens.get(index), pooled.get(index)))
        return output

    def generate(self, run: Run, number: int, chunk: int = 2**31) -> list[int]:
        """So many tokens behind those of a run, whose prompt is computed in chunks."""
        found: list[int] = []
        while len(found) < number:
            self.step([(run, chunk)])
            if run.done:
                token = run.results[-1].token
                assert token is not None
                assert run.results[-1].fault is Fault.NONE
                found.append(token.token_id)
                run.append(token.token_id)
        return found
