"""Which executor runs a model: chosen once, from the operator's options and the facts of the device."""

import logging
from dataclasses import dataclass
from itertools import pairwise

import torch

from polyfleet.backends.protocol import KernelCapabilities
from polyfleet.engine.batch import Executor
from polyfleet.engine.eager import EagerExecutor
from polyfleet.engine.request import EngineOptions
from polyfleet.loading.model import LoadedModel
from polyfleet.loading.progress import Progress, silent
from polyfleet.models.registry import record

log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
EXECUTORS = ("auto", "eager", "persistent", "vulkan")


def computing_dtype(options: EngineOptions, capabilities: KernelCapabilities) -> torch.dtype:
    """The dtype of computation and KV cache; raises ValueError for one that the device can't compute in."""
    name = capabilities.preferred_dtype if options.dtype == "auto" else options.dtype
    if name not in DTYPES or name not in capabilities.dtypes:
        usable = ", ".join(sorted(DTYPES.keys() & capabilities.dtypes))
        raise ValueError(f"dtype {name!r} can't be used on this device: choose auto or one of {usable}")
    return DTYPES[name]


def build_executor(
    model: LoadedModel,
    options: EngineOptions,
    device: str,
    num_blocks: int,
    capabilities: KernelCapabilities,
    progress: Progress = silent,
) -> Executor:
    """The executor of `options` on torch's `device` (of which `capabilities` speak), with its KV cache.

    `auto` takes the first of the device's own executors that can run the model, or the eager one where a dtype is
    asked for: others may compute in int8 where weights are quantised, that one exactly in the dtype. Raises ValueError
    for options that can't be met here.
    """
    if options.executor not in EXECUTORS:
        raise ValueError(f"there is no executor {options.executor!r}: choose one of {', '.join(EXECUTORS)}")
    possible = capabilities.executors
    if options.executor != "auto" and options.executor not in possible:
        choices = " or ".join(("auto", *possible))
        raise ValueError(f"the {options.executor} executor can't run on {device}: choose {choices}")
    if options.executor != "auto":
        possible = (options.executor,)
    elif options.dtype != "auto" and "eager" in possible:
        possible = ("eager",)
    build = {"eager": _eager, "persistent": _persistent, "vulkan": _vulkan}
    wanted = _Wanted(model, options, device, num_blocks, capabilities, progress)
    for name, after in pairwise(possible):
        try:
            return build[name](wanted)
        except ValueError as error:
            log.warning("the %s executor is used, which is slower: %s", after, error)
    return build[possible[-1]](wanted)


def kernel_facts(capabilities: KernelCapabilities) -> frozenset[str]:
    """The facts that implementations may demand, as words: graph_capture, triton, and instruction sets."""
    flags = {name for name in ("graph_capture", "triton", "flash_attention") if getattr(capabilities, name)}
    return frozenset(flags | set(capabilities.instruction_sets))


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What `build_executor` was asked for."""

    model: LoadedModel
    options: EngineOptions
    device: str
    num_blocks: int
    capabilities: KernelCapabilities
    progress: Progress


def _eager(wanted: _Wanted) -> Executor:
    if wanted.options.threads:
        torch.set_num_threads(wanted.options.threads)
    return EagerExecutor(
        wanted.model,
        device=wanted.device,
        dtype=computing_dtype(wanted.options, wanted.capabilities),
        num_blocks=wanted.num_blocks,
        block_size=wanted.options.block_size,
        capabilities=kernel_facts(wanted.capabilities),
        progress=wanted.progress,
    )


def _persistent(wanted: _Wanted) -> Executor:
    """Raises ValueError where it can't run."""
    from polyfleet.engine.persistent import PersistentKernel
    from polyfleet.kernels.cpu.library import LibraryUnavailable

    try:
        return PersistentKernel(
            record(wanted.model.config, wanted.model.weights),
            weights=wanted.model.weights,
            num_blocks=wanted.num_blocks,
            block_size=wanted.options.block_size,
            threads=wanted.options.threads,
            reproducible=wanted.options.reproducible,
        )
    except LibraryUnavailable as error:
        raise ValueError(str(error)) from None


def _vulkan(wanted: _Wanted) -> Executor:
    """Raises ValueError for another dtype, VulkanError where the device fails."""
    from polyfleet.engine.vulkan import VulkanExecutor

    computing_dtype(wanted.options, wanted.capabilities)
    return VulkanExecutor(wanted.model, num_blocks=wanted.num_blocks, block_size=wanted.options.block_size)
