"""Driving an executor without a Batcher: slices made by hand, logits read back as float64 logprobs of every token."""

import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from polyfleet.engine.batch import Executor, SequenceSlice, SliceResult, StepBatch
from polyfleet.sampling.draw import Draw
from polyfleet.wire.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0.0)


def logprob_draw(vocabulary: int) -> Draw:
    """A greedy draw that reports the logprob of every token."""
    return Draw(GREEDY, num_logprobs=vocabulary)


def logprobs_of(result: SliceResult) -> NDArray[np.float64]:
    """The reported logprobs in order of id."""
    assert result.token is not None, result.error
    out = np.empty(len(result.token.top_ids))
    out[list(result.token.top_ids)] = result.token.top_logprobs
    return out


class Tables:
    """Hands out shuffled blocks, so that no block table is in order."""

    def __init__(self, executor: Executor, seed: int = 0) -> None:
        self._executor = executor
        self._free = list(range(executor.num_blocks))
        random.Random(seed).shuffle(self._free)

    def take(self, num_tokens: int) -> list[int]:
        """A block table for so many tokens."""
        return [self._free.pop() for _ in range(-(-num_tokens // self._executor.block_size))]


class Run:
    """One sequence that is computed piece by piece; the pieces of several runs make a batch."""

    def __init__(self, token_ids: Sequence[int], table: Sequence[int], draw: Draw) -> None:
        self.token_ids = list(token_ids)
        self.computed = 0
        self.results: list[SliceResult] = []  # one for each piece
        self.ends: list[int] = []  # tokens computed by the end of each piece
        self._table, self._draw = table, draw

    @property
    def done(self) -> bool:
        """Whether all tokens are computed."""
        return self.computed == len(self.token_ids)

    def next_slice(self, size: int) -> SequenceSlice:
        """The next `size` tokens, or as many as are left."""
        ids = self.token_ids[self.computed : self.computed + size]
        start, self.computed = self.computed, self.computed + len(ids)
        self.ends.append(self.computed)
        return SequenceSlice(ids, start, self._table, self._draw)


def step(executor: Executor, pieces: Sequence[tuple[Run, int]]) -> None:
    """One step over the next tokens of each run."""
    batch = StepBatch(tuple(run.next_slice(size) for run, size in pieces))
    for (run, _), result in zip(pieces, executor.step(batch), strict=True):
        run.results.append(result)
