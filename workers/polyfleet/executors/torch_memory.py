"""How much memory a model takes in torch: from its shapes, and the step by which it is measured."""

from traceback import clear_frames
from typing import Any

import numpy as np
import torch

from polyfleet.backends.cpu import usable_cores
from polyfleet.engine.choosing.executors import Workload
from polyfleet.engine.executor import Capacity, Footprint
from polyfleet.engine.step.plan import Need, StepPlan, lay_out
from polyfleet.graph.ops import OpKind
from polyfleet.kernels.adapters import table_numbers
from polyfleet.kernels.cached import BYTES, CODES
from polyfleet.kernels.context import DTYPES
from polyfleet.kernels.weights.packed import kept, packed_bytes
from polyfleet.kvcache.storage import bytes_of, bytes_per_token
from polyfleet.sampling.draw import PARAMETERS, parameters
from polyfleet.tuning.device_defaults import defaults_of
from polyfleet.wire.sampling import SamplingParams

DRAW_BYTES = 16  # of each logit, at most
LIVE_VALUES = 4  # as wide as the widest, at once


def statistics(device: torch.device) -> Any:
    """The module of torch that counts what is allocated on such devices; None where there is none."""
    module = getattr(torch, device.type, None)
    return module if device.type != "cpu" and hasattr(module, "max_memory_allocated") else None


def estimate(workload: Workload) -> Footprint:
    """Every weight once, in the computing dtype or as it is kept; the workspace of a large step."""
    size, graph = DTYPES[workload.dtype].itemsize, workload.graph
    weights = _weight_bytes(workload, size)
    rows, sequences = _largest(workload)
    vocabulary = graph.widths[graph.logits]
    widest = max(width for value, width in enumerate(graph.widths) if value != graph.logits)
    workspace = rows * LIVE_VALUES * widest * size + sequences * vocabulary * DRAW_BYTES
    dtype, caches = cache_dtype(workload), graph.caches
    local = bytes_of(caches, graph.local_caches, dtype)
    return Footprint(weights, bytes_per_token(caches, dtype), workspace, graph.state_bytes, local)


def cache_dtype(workload: Workload) -> torch.dtype:
    """What keys and values are held as."""
    return {"fp8": BYTES, "int8": CODES}.get(workload.options.kv_dtype, DTYPES[workload.dtype])


def missing_dtype(workload: Workload) -> str:
    """What numbers can't become, and come back from, there, although caches of this kind have it; "" for nothing."""
    needed = {"fp8": "float8_e4m3fn", "int8": "bfloat16"}.get(workload.options.kv_dtype, "")
    return "" if workload.device == "cpu" or needed in workload.capabilities.dtypes else needed


def _weight_bytes(workload: Workload, size: int) -> int:
    """Products' weights as they are kept, all others in a computing dtype of so many bytes."""
    weights_as = workload.options.weights.replace("dense", "") if "triton" in workload.facts else ""
    products = {name for op in workload.graph.ops if op.kind is OpKind.LINEAR for name in op.weights}
    others = {name for op in workload.graph.ops if op.kind is not OpKind.LINEAR for name in op.weights}
    total = 0
    for name, weight in workload.weights.items():
        kind = kept([weight], weights_as) if name in products else None
        total += packed_bytes(kind, [weight]) if kind else 0
        total += weight.rows * weight.columns * size if not kind or name in others else 0
    return total + size * workload.options.max_adapters * table_numbers(
        workload.graph, workload.weights, workload.options.rank
    )


def profile_plan(workload: Workload, block_size: int) -> tuple[Capacity, StepPlan]:
    """A step as large as it gets, over a cache of one block, and what must be allocated for it.

    All sequences but one decode at random, far into their context; the last one has all other rows.
    """
    rows, sequences = _largest(workload)
    prompt = rows - (sequences - 1)
    lengths = [rows] * (sequences - 1) + [prompt]
    starts = [*range(sequences), rows]
    positions = [rows - 1] * (sequences - 1) + list(range(prompt))
    slots = list(range(sequences))
    parts: tuple[list[int], ...] = (
        *([0] * rows, positions, slots, starts, lengths),
        *([start - 1 for start in starts[1:]], slots, lengths, [], [], []),
    )
    width = -(-rows // block_size)
    sampling = np.full(sequences, np.array(parameters(SamplingParams(temperature=1.0)), dtype=PARAMETERS))
    tables, changed = np.zeros((sequences, width), dtype=np.int32), np.zeros(0, dtype=np.int32)
    plan = lay_out(parts, Need.RANDOM, tables, changed, sampling, ())
    return Capacity(1, block_size, sequences, width, rows), plan


def _largest(workload: Workload) -> tuple[int, int]:
    """Rows and sequences of a large step."""
    options, defaults = workload.options, defaults_of(host=workload.device == "cpu", cores=usable_cores())
    rows = max(2, options.step_tokens or max(defaults.step_tokens, 2 * options.max_sequences))
    sequences = options.max_sequences or defaults.max_sequences
    return rows, max(1, min(sequences, rows - 1))


class memory_errors:
    """MemoryError for torch's own ways to say that there is no memory; lets go what failed holds."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if not isinstance(error, RuntimeError):
            return
        if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            clear_frames(trace)
            raise MemoryError(str(error).partition("\n")[0]) from None
