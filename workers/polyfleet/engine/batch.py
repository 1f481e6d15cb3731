"""The seam between Batcher and Executor: what one step computes, and what comes back. No tensors, no devices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, unique
from typing import Protocol

from polyfleet.sampling.draw import Draw, SampledToken


@unique
class PoolingKind(str, Enum):
    """How hidden states become one embedding."""

    MEAN = "mean"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class SequenceSlice:
    """One sequence's share of a step: `token_ids` at positions `start`, `start + 1`, …

    The KV of all positions below `start` is in the blocks already; `block_table` covers every position of the slice.
    """

    token_ids: Sequence[int]
    start: int
    block_table: Sequence[int]
    draw: Draw | None = None  # None for a prompt chunk that is not the last
    pooling: PoolingKind | None = None  # set: hidden states of this slice are wanted


@dataclass(frozen=True, slots=True)
class StepBatch:
    """All slices of one forward pass, decodes (one token) first."""

    slices: tuple[SequenceSlice, ...]

    @property
    def num_tokens(self) -> int:
        """Rows of the forward pass."""
        return sum(len(each.token_ids) for each in self.slices)


@dataclass(frozen=True, slots=True)
class SliceResult:
    """What a step made of one slice: a token where one was drawn, pooled hidden states where they were wanted, or why
    neither could be had (logits that are not finite, say); an error fails this one sequence.

    With MEAN pooling `pooled` is the SUM over the slice's rows (chunks add up; the Batcher divides); with LAST it is
    the last row.
    """

    token: SampledToken | None = None
    pooled: tuple[float, ...] = ()
    error: str = ""


class Executor(Protocol):
    """Runs a KernelGraph over the paged KV cache and draws tokens."""

    block_size: int
    num_blocks: int

    def step(self, batch: StepBatch) -> tuple[SliceResult, ...]:
        """Compute one step; results are parallel to `batch.slices`. Not thread-safe."""
        ...

    def implementations(self) -> Mapping[str, str]:
        """Which implementation runs each op, for `polyfleet info`."""
        ...
