"""A kernel graph on its executor: compiled by the first of the device's that can, run in pieces of rows."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyfleet.backends.protocol import BackendType, KernelCapabilities, accelerator_name
from polyfleet.backends.registry import BackendRegistry
from polyfleet.engine.choosing.executors import ExecutorKind, Workload, believable, candidates, first_that_works, refuse
from polyfleet.engine.choosing.machines import open_machine
from polyfleet.engine.choosing.sizing import Machine, computing_dtype
from polyfleet.engine.executor import Capacity, Executor
from polyfleet.engine.step.plan import Need, lay_out
from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.kernels.weights.weight import Weights
from polyfleet.loading.progress import silent
from polyfleet.sampling.draw import PARAMETERS
from polyfleet.tuning.device_defaults import usual_block_size
from polyfleet.wire.options import EngineOptions

TIMEOUT_SECONDS = 300.0  # for one piece; kernels may be compiled for the first


@dataclass(frozen=True, slots=True)
class Site:
    """A device, and which of its executors may be taken."""

    backend: str  # its accelerator
    machine: Machine
    capabilities: KernelCapabilities
    options: EngineOptions
    dtype: str
    candidates: dict[str, str]

    @classmethod
    def open(cls, backend: BackendType | str, executor: str, dtype: str) -> "Site":
        """Raises BackendUnavailable, or ValueError for what the device lacks."""
        options = EngineOptions(device=accelerator_name(backend), executor=executor)
        machine, capabilities = open_machine(options.device)
        dtype = computing_dtype(replace(options, dtype=dtype), machine)
        # Executors of their own precision compute in float32 or as exactly; another dtype is the eager one's to keep.
        wanted = replace(options, dtype="auto" if dtype == "float32" else dtype)
        names = candidates(wanted, machine.device, capabilities)
        accelerator = options.device.partition(":")[0]
        found = BackendRegistry.get_default() if accelerator == "auto" else BackendRegistry.known(accelerator)
        return cls(accelerator_name(found.type), machine, capabilities, options, dtype, names)


@dataclass(frozen=True, slots=True)
class GraphProgram:
    """An executor that holds a graph, and has room for `capacity.step_tokens` rows.

    Its ops all work row by row; or it has caches, and sees the rows of one call as one sequence, which fit.
    """

    executor: Executor
    graph: KernelGraph
    capacity: Capacity
    num_bytes: int = 0  # that it takes, as its executor expects

    @classmethod
    def compile(cls, site: Site, graph: KernelGraph, weights: Weights, rows: int = 0) -> "GraphProgram":
        """On the first executor that computes a row of zeros; raises ValueError with the reasons of all.

        `rows` of one step at most; 0: as many as models have there.
        """
        rows = rows or site.machine.defaults.step_tokens
        block_size = usual_block_size(site.machine.block_sizes)
        blocks = -(-rows // block_size)
        capacity = Capacity(blocks if graph.caches else 1, block_size, 1, blocks, rows)
        options = replace(site.options, step_tokens=rows, max_sequences=1, block_size=block_size, reproducible=True)
        workload = Workload(graph, weights, options, site.machine.device, site.dtype, site.capabilities)

        def attempt(kind: ExecutorKind) -> GraphProgram:
            refuse(kind, workload)
            footprint = believable(kind.name, kind.footprint(workload))
            if footprint.weights + footprint.workspace > site.machine.free_bytes:
                needed = (footprint.weights + footprint.workspace) / 2**30
                raise ValueError(f"the graph takes {needed:.1f} GiB, more than {site.machine.device} has free")
            total = footprint.weights + footprint.workspace + footprint.kv_per_token * capacity.step_tokens
            program = cls(kind.build(workload, silent), graph, capacity, total)
            try:
                program.executor.allocate(capacity)
                program.run(1, None, [np.zeros((1, graph.widths[value]), dtype=np.float32) for value in graph.inputs])
            except BaseException:
                with suppress(Exception):  # what went wrong before is the reason
                    program.close()
                raise
            return program

        return first_that_works(site.candidates, attempt)[0]

    def run(
        self, rows: int, ids: NDArray[np.int32] | None, inputs: Sequence[NDArray[np.float32]]
    ) -> tuple[NDArray[Any], ...]:
        """The graph's outputs [rows, width] from its inputs; without `ids` they are all 0."""
        ids = np.zeros(rows, dtype=np.int32) if ids is None else ids
        most = self.capacity.step_tokens
        pieces = [
            self._step(ids[first : first + most], [each[first : first + most] for each in inputs])
            for first in range(0, rows, most)
        ]
        if not pieces:
            return tuple(np.zeros((0, self.graph.widths[value]), dtype=np.float32) for value in self.graph.outputs)
        return tuple(np.concatenate(parts) if len(parts) > 1 else parts[0] for parts in zip(*pieces, strict=True))

    def close(self) -> None:
        """Free the device's memory."""
        self.executor.close()

    def _step(self, ids: NDArray[np.int32], inputs: Sequence[NDArray[np.float32]]) -> tuple[NDArray[Any], ...]:
        """A step of one sequence, none of whose rows draws."""
        rows = len(ids)
        parts: tuple[Sequence[int], ...] = (ids.tolist(), range(rows), (0,), (0, rows), (rows,), *[()] * 6)
        tables = np.arange(self.capacity.max_blocks, dtype=np.int32)[None] % self.capacity.num_blocks
        plan = lay_out(parts, Need.OUTPUTS, tables, np.zeros(1, np.int32), np.zeros(1, dtype=PARAMETERS), ())
        plan.inputs = inputs
        pending = self.executor.launch(plan)
        self.executor.draw(pending)
        outputs = self.executor.collect(pending, TIMEOUT_SECONDS).outputs
        shapes = [np.shape(each) for each in outputs]
        wanted = [(rows, self.graph.widths[value]) for value in self.graph.outputs]
        if shapes != wanted:
            raise ValueError(f"the {self.executor.name} executor gives outputs of {shapes} instead of {wanted}")
        return outputs
