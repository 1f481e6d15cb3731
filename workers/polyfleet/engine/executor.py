"""The seam between Batcher and Executor: what an executor is asked, and what it gives back. No tensors, no devices."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, unique
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from polyfleet.sampling.draw import Logprobs
from polyfleet.sampling.masks import Masks

if TYPE_CHECKING:
    from polyfleet.engine.step.plan import StepPlan


@unique
class Fault(IntEnum):
    """What was wrong with a sequence's rows of a step."""

    NONE = 0
    NOT_FINITE = 1


FAULTS: Mapping[int, str] = {Fault.NOT_FINITE: "the model's output is not finite; check the weights, or choose float32"}


class StepTooLarge(Exception):
    """A step has more rows than there is room for; nothing of it was started, smaller ones are to be planned."""


class DeviceTimeout(Exception):
    """A device did not finish a step in time."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """What an executor takes for a model. Bytes; an estimate from the weights' shapes and formats, or measured."""

    weights: int  # as it keeps them
    kv_per_token: int  # keys and values of one position over all layers
    workspace: int = 0  # what the largest step takes beside them
    state_per_sequence: int = 0  # recurrent state of each sequence that may run; 0: the model has none
    local_per_token: int = 0  # of `kv_per_token`: caches that may have a pool of their own (see Capacity)


@dataclass(frozen=True, slots=True)
class Capacity:
    """How much an executor must have room for."""

    num_blocks: int
    block_size: int  # tokens a block
    max_sequences: int  # slots
    max_blocks: int  # of one sequence
    step_tokens: int  # rows of one step
    drafts: int = 0  # of a sequence in one step
    local_blocks: int = 0  # of caches that are read through a window alone, where others are read whole; 0: in one pool

    @property
    def table_width(self) -> int:
        """Columns of block tables: `max_blocks` of each pool, side by side."""
        return self.max_blocks * (2 if self.local_blocks else 1)

    @property
    def max_draws(self) -> int:
        """Draws of one step."""
        return min(self.step_tokens, self.max_sequences * (1 + self.drafts))


@dataclass(slots=True)
class StepOutput:
    """What a step came to. Arrays are the receiver's to keep."""

    token_ids: NDArray[Any]  # [S] int, a token for each draw; some valid id where the sequence has a fault
    faults: NDArray[np.int8]  # [B] Fault of each sequence over all its rows
    logprobs: Logprobs | None = None  # [S], where the plan needs some
    pooled: NDArray[Any] | None = None  # [P, H] float: SUM over a slice's rows for MEAN, its last row for LAST
    outputs: tuple[NDArray[Any], ...] = ()  # the graph's [T, width], where the plan needs them


class BlockImport:
    """`import_blocks` in parts, for blocks that nobody else touches meanwhile: the steps' thread makes it, and ends it;
    between that any thread writes, one such import after another, while steps go on."""

    def __init__(self, write: Callable[[Sequence[NDArray[Any]]], Callable[[], None] | None]) -> None:
        """`write` gives what it leaves to the steps' thread, if anything."""
        self._write = write
        self._rest: Callable[[], None] | None = None

    def write(self, caches: Sequence[NDArray[Any]]) -> None:
        """As `import_blocks`."""
        self._rest = self._write(caches)

    def end(self) -> None:
        """Once that is over, however: steps from now on find what was written."""
        if self._rest is not None:
            self._rest()


class Pending:
    """What an executor remembers of a step under way; nobody else looks inside."""

    __slots__ = ()


class Executor(Protocol):
    """Runs a KernelGraph over the paged KV cache and draws tokens. Not thread-safe.

    For each step: `launch`, then `draw`, then `collect`, each once, `draw` before the next `launch`; steps are
    collected in the order of their launches, and no more than `depth` are under way. Where one of the three raises,
    nothing more is asked of that step. MemoryError means that the device's memory did not suffice: the sequences are
    computed again, in smaller steps. DeviceTimeout ends the engine. Any other exception fails the step's sequences.
    """

    name: str  # what operators call it
    dtype: str  # it computes in, whatever was asked for: float32, float16 or bfloat16
    depth: int  # steps that may be under way: 1 where `launch` computes, 2 where the device is asynchronous

    def measure(self) -> Footprint:
        """What it really takes, once built; it has no KV cache yet."""
        ...

    def allocate(self, capacity: Capacity) -> None:
        """Make room for the KV cache and the largest step; once, before the first launch. May raise MemoryError."""
        ...

    def launch(self, plan: "StepPlan") -> Pending:
        """Start a forward pass. The plan's arrays are borrowed: they change as soon as this returns.

        Raises StepTooLarge before anything is started, from sizes alone.
        """
        ...

    def draw(self, pending: Pending, masks: Masks | None = None) -> None:
        """Start the sampling of all its draws; `masks` say which tokens some of them may not take as they are."""
        ...

    def collect(self, pending: Pending, timeout: float) -> StepOutput:
        """Wait for a step; raises DeviceTimeout after so many seconds."""
        ...

    def export_blocks(self, blocks: Sequence[int]) -> tuple[NDArray[Any], ...]:
        """Contents of blocks that no step under way writes; waits for no step.

        Of each cache [2, len(blocks) * block_size, kv heads, width], in the cache's own dtype, bfloat16 as its bits in
        uint16; int8 as rows of codes with their scales, [2, …, width + 2]. Without blocks, empty arrays that tell shape
        and dtype. See kvcache/portable.py.
        """
        ...

    def import_blocks(self, blocks: Sequence[int], caches: Sequence[NDArray[Any]]) -> None:
        """Write what `export_blocks` gave, behind every launch before. What `caches` lie in may change afterwards."""
        ...

    def implementations(self) -> Mapping[str, str]:
        """Which implementation runs each op, for `polyfleet info`."""
        ...

    # One that gives caches with a window a pool of their own where `Capacity.local_blocks` says so has
    # `separates_windows`, which is true, and states their part in `Footprint.local_per_token`. Its `export_blocks` and
    # `import_blocks` take as many blocks of that pool, too, behind what they take anyway.

    # One that copies blocks beside its steps also has
    #     def host_rows(self, count: int) -> HostMemory | None
    # It makes room for so many blocks in host memory (kvcache/tiers.py) that is faster than what goes by
    # `export_blocks` and `import_blocks`; None where it has none. May raise MemoryError.

    # One whose copies go beside its steps also has
    #     def begin_export(self, blocks: Sequence[int]) -> Callable[[], tuple[NDArray[Any], ...]]
    #     def begin_import(self, blocks: Sequence[int]) -> BlockImport | None
    #     def host_buffers(self) -> Callable[[int], memoryview] | None
    # The first is `export_blocks` but for the waiting, which any thread may do by calling what it gives; what is
    # written to the blocks later waits for the copy. The second is `import_blocks` beside steps; None where one thread
    # alone may touch the device. All that can write blocks while it computes may have it. The third is what makes host
    # memory from which `import_blocks` copies without the host where arrays are Joined in it: of such it may be let go
    # at once, but not written.

    # One that can keep keys and values in 8 bits has `kv_dtypes`, the values of that option that it knows beside auto.

    # One that takes adapters, which options with `max_adapters` ask for, also has
    #     def set_adapter(self, number: int, parts: Mapping[str, LowRank]) -> None
    # It puts an adapter's matrices, by the weights' names, in the place of those of a number under `max_adapters`;
    # none free what they take. No step under way has rows of that number.

    def close(self) -> None:
        """Free what it holds at once rather than with the last reference."""
        ...
