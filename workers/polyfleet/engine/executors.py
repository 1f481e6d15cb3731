"""Which executor runs a model: chosen once, from the operator's options and the facts of the device."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import torch

from polyfleet.backends.protocol import KernelCapabilities
from polyfleet.engine.batch import Executor
from polyfleet.engine.eager import EagerExecutor
from polyfleet.engine.request import EngineOptions
from polyfleet.engine.sizing import BLOCK_SIZE, DTYPE_BYTES, Footprint, kv_bytes_per_token
from polyfleet.loading.model import LoadedModel
from polyfleet.loading.progress import Progress, silent
from polyfleet.models.registry import record
from polyfleet.wire.limits import FieldError

log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
Result = TypeVar("Result")


def computing_dtype(options: EngineOptions, capabilities: KernelCapabilities) -> torch.dtype:
    """The dtype of computation and KV cache; raises ValueError for one that the device can't compute in."""
    name = capabilities.preferred_dtype if options.dtype == "auto" else options.dtype
    if name not in DTYPES or name not in capabilities.dtypes:
        usable = ", ".join(sorted(DTYPES.keys() & capabilities.dtypes))
        raise ValueError(f"dtype {name!r} can't be used on this device: choose auto or one of {usable}")
    return DTYPES[name]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an executor is built from."""

    model: LoadedModel
    options: EngineOptions  # `dtype` as it was asked for
    device: str  # torch's name
    num_blocks: int
    block_size: int
    capabilities: KernelCapabilities
    progress: Progress = silent


@dataclass(frozen=True, slots=True)
class ExecutorKind:
    """One way to run models on a device.

    `refuses` says in a sentence why a model can't be run, "" when it can; `footprint` what it will take, for a
    computing dtype. Both need the shapes and formats of the weights alone. `build` raises ValueError where it fails.
    """

    refuses: Callable[[LoadedModel], str]
    footprint: Callable[[LoadedModel, str], Footprint]
    build: Callable[[Wanted], Executor]


def candidates(options: EngineOptions, device: str, capabilities: KernelCapabilities) -> tuple[str, ...]:
    """The executors that `options` mean on torch's `device` (of which `capabilities` speak), the best first.

    `auto` means the device's own, or the eager one where a dtype is asked for: others may compute in int8 where
    weights are quantised, that one exactly in the dtype. Raises ValueError for options that can't be met here.
    """
    if options.executor not in ("auto", *EXECUTORS):
        raise ValueError(f"there is no executor {options.executor!r}: choose one of auto, {', '.join(EXECUTORS)}")
    possible = capabilities.executors
    if options.executor != "auto" and options.executor not in possible:
        choices = " or ".join(("auto", *possible))
        raise ValueError(f"the {options.executor} executor can't run on {device}: choose {choices}")
    if options.executor != "auto":
        return (options.executor,)
    return ("eager",) if options.dtype != "auto" and "eager" in possible else possible


def first_that_works(names: Sequence[str], model: LoadedModel, attempt: Callable[[ExecutorKind], Result]) -> Result:
    """What `attempt` makes with the first executor that neither refuses the model nor raises ValueError.

    Raises the last one's ValueError; a FieldError is the operator's to settle, and ends the search.
    """
    for name, after in pairwise((*names, "")):
        kind = EXECUTORS[name]
        try:
            if reason := kind.refuses(model):
                raise ValueError(reason)
            return attempt(kind)
        except ValueError as error:
            if not after or isinstance(error, FieldError):
                raise
            log.warning("the %s executor is used, which is slower: %s", after, error)
    raise ValueError("this device has no executor")


def build_executor(
    model: LoadedModel,
    options: EngineOptions,
    device: str,
    num_blocks: int,
    capabilities: KernelCapabilities,
    progress: Progress = silent,
) -> Executor:
    """The first executor of `candidates` that works, with a KV cache of so many blocks."""
    block_size = options.block_size or BLOCK_SIZE
    wanted = Wanted(model, options, device, num_blocks, block_size, capabilities, progress)
    names = candidates(options, device, capabilities)
    return first_that_works(names, model, lambda kind: kind.build(wanted))


def kernel_facts(capabilities: KernelCapabilities) -> frozenset[str]:
    """The facts that implementations may demand, as words: graph_capture, triton, and instruction sets."""
    flags = {name for name in ("graph_capture", "triton", "flash_attention") if getattr(capabilities, name)}
    return frozenset(flags | set(capabilities.instruction_sets))


def _dense(model: LoadedModel, dtype: str) -> Footprint:
    """Every weight in the computing dtype, once for each way that ops stack it."""
    count = sum(weight.rows * weight.columns for weight in model.weights.values())
    return Footprint(count * DTYPE_BYTES[dtype], kv_bytes_per_token(model.config, dtype))


def _eager(wanted: Wanted) -> Executor:
    if wanted.options.threads:
        torch.set_num_threads(wanted.options.threads)
    return EagerExecutor(
        wanted.model,
        device=wanted.device,
        dtype=computing_dtype(wanted.options, wanted.capabilities),
        num_blocks=wanted.num_blocks,
        block_size=wanted.block_size,
        capabilities=kernel_facts(wanted.capabilities),
        progress=wanted.progress,
    )


def _not_persistent(model: LoadedModel) -> str:
    from polyfleet.kernels.cpu import library
    from polyfleet.kernels.cpu.engine import unsupported

    try:
        library.load()
    except library.LibraryUnavailable as error:
        return str(error)
    return unsupported(record(model.config, model.weights), model.weights)


def _packed(model: LoadedModel, dtype: str) -> Footprint:
    """The CPU engine keeps quantised weights quantised, and its cache in float16 whatever the dtype."""
    from polyfleet.kernels.cpu.footprint import weight_bytes

    packed = weight_bytes(record(model.config, model.weights), model.weights)
    return Footprint(packed, kv_bytes_per_token(model.config, "float16"))


def _persistent(wanted: Wanted) -> Executor:
    from polyfleet.engine.persistent import PersistentKernel

    return PersistentKernel(
        record(wanted.model.config, wanted.model.weights),
        weights=wanted.model.weights,
        num_blocks=wanted.num_blocks,
        block_size=wanted.block_size,
        threads=wanted.options.threads,
        reproducible=wanted.options.reproducible,
    )


def _vulkan(wanted: Wanted) -> Executor:
    """Raises ValueError for another dtype, VulkanError where the device fails."""
    from polyfleet.engine.vulkan import VulkanExecutor

    computing_dtype(wanted.options, wanted.capabilities)
    return VulkanExecutor(wanted.model, num_blocks=wanted.num_blocks, block_size=wanted.block_size)


def _nothing(model: LoadedModel) -> str:
    """Refuses no model."""
    return ""


EXECUTORS = {
    "eager": ExecutorKind(_nothing, _dense, _eager),
    "persistent": ExecutorKind(_not_persistent, _packed, _persistent),
    "vulkan": ExecutorKind(_nothing, lambda model, dtype: _dense(model, "float32"), _vulkan),
}
