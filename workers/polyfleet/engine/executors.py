"""Which executor runs a model: chosen once, from the operator's options and the facts of the device."""

import logging

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
EXECUTORS = ("auto", "eager", "persistent")


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

    `auto` takes the persistent executor on a CPU where it can run the model, unless a dtype is asked for: that one
    computes in int8 where weights are quantised, the eager one in exactly the dtype. On a device "vulkan" there is
    only its own. Raises ValueError for options that can't be met here.
    """
    if options.executor not in EXECUTORS:
        raise ValueError(f"there is no executor {options.executor!r}: choose one of {', '.join(EXECUTORS)}")
    if device == "vulkan":
        return _vulkan(model, options, num_blocks)
    if options.executor == "persistent":
        return _persistent(model, options, device, num_blocks)
    if options.executor == "auto" and options.dtype == "auto" and device == "cpu":
        try:
            return _persistent(model, options, device, num_blocks)
        except ValueError as error:
            log.warning("the eager executor is used, which is slower: %s", error)
    if options.threads:
        torch.set_num_threads(options.threads)
    return EagerExecutor(
        model,
        device=device,
        dtype=computing_dtype(options, capabilities),
        num_blocks=num_blocks,
        block_size=options.block_size,
        capabilities=kernel_facts(capabilities),
        progress=progress,
    )


def kernel_facts(capabilities: KernelCapabilities) -> frozenset[str]:
    """The facts that implementations may demand, as words: graph_capture, triton, and instruction sets."""
    flags = {name for name in ("graph_capture", "triton", "flash_attention") if getattr(capabilities, name)}
    return frozenset(flags | set(capabilities.instruction_sets))


def _persistent(model: LoadedModel, options: EngineOptions, device: str, num_blocks: int) -> Executor:
    """Raises ValueError where it can't run."""
    from polyfleet.engine.persistent import PersistentKernel
    from polyfleet.kernels.cpu.library import LibraryUnavailable

    if device != "cpu":
        raise ValueError(f"the persistent executor can't run on {device}: choose auto or eager")
    try:
        return PersistentKernel(
            record(model.config, model.weights),
            weights=model.weights,
            num_blocks=num_blocks,
            block_size=options.block_size,
            threads=options.threads,
        )
    except LibraryUnavailable as error:
        raise ValueError(str(error)) from None


def _vulkan(model: LoadedModel, options: EngineOptions, num_blocks: int) -> Executor:
    """Raises ValueError for other executors and dtypes, VulkanError where the device fails."""
    from polyfleet.engine.vulkan import VulkanExecutor

    if options.executor != "auto" or options.dtype not in ("auto", "float32"):
        raise ValueError("on vulkan the executor must be auto and the dtype float32")
    return VulkanExecutor(model, num_blocks=num_blocks, block_size=options.block_size)
