"""Which executor runs a model: chosen once, from the operator's options and the facts of the device."""

import torch

from polyfleet.backends.protocol import KernelCapabilities
from polyfleet.engine.batch import Executor
from polyfleet.engine.eager import EagerExecutor
from polyfleet.engine.request import EngineOptions
from polyfleet.loading.model import LoadedModel
from polyfleet.loading.progress import Progress, silent

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


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
    """The executor of `options.executor` on torch's `device` (of which `capabilities` speak), with its KV cache.

    Raises ValueError for options that can't be met here.
    """
    if options.executor not in ("auto", "eager"):
        raise ValueError(f"executor {options.executor!r} can't be had here: choose auto or eager")
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
