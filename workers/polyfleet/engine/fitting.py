"""Whether and how a model fits a device, here or imagined, and what would make it fit: by the sizing of a worker."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from polyfleet.backends import KernelCapabilities
from polyfleet.backends.cpu import usable_cores
from polyfleet.backends.imagined import imagined_capabilities
from polyfleet.engine.choosing.executors import (
    EXACT,
    KNOWN,
    ExecutorKind,
    Workload,
    believable,
    candidates,
    find,
    refuse,
)
from polyfleet.engine.choosing.machines import open_machine
from polyfleet.engine.choosing.sizing import Machine, computing_dtype, resolve
from polyfleet.engine.executor import Footprint
from polyfleet.engine.loader import grouped, with_room
from polyfleet.graph.ops import OpKind
from polyfleet.kernels.weights.packed import HEADS, kept
from polyfleet.kernels.weights.weight import Weight, WeightFormat
from polyfleet.loading.model import LoadedModel
from polyfleet.models.registry import record
from polyfleet.wire.limits import FieldError
from polyfleet.wire.options import EngineOptions

CONTEXTS = (131072, 65536, 32768, 16384, 8192, 4096, 2048)  # that are tried where a longer one does not fit
RANKS = (2, 4, 8)
SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 80, 96, 141, 192, 288)  # GiB of devices
QUANTISED_COLUMNS = 32  # that a group has at least


@dataclass(frozen=True, slots=True)
class Fit:
    """How a model fits a device: bytes and tokens, or in one sentence why it does not, and what to do about it."""

    device: str
    memory_bytes: int = 0  # that are free, or were imagined
    executor: str = ""
    dtype: str = ""  # that is computed in, where it is the device's choice
    weight_bytes: int = 0
    kv_bytes_per_token: int = 0
    state_bytes_per_sequence: int = 0
    context_length: int = 0
    max_sequences: int = 0
    kv_cache_tokens: int = 0
    dequantised: int = 0  # matrices that files have quantised and the executor keeps dense
    dequantised_because: str = ""
    problem: str = ""
    changes: tuple[str, ...] = ()  # each would make it fit


@dataclass(frozen=True, slots=True)
class Site:
    """A device, and what it can do."""

    name: str
    machine: Machine
    capabilities: KernelCapabilities


def site_here(name: str, memory_bytes: int = 0) -> Site:
    """A device of this machine, as if so many bytes of it were free (0: those that are). Raises as `open_machine`."""
    machine, capabilities = open_machine(name)
    return Site(name, replace(machine, free_bytes=memory_bytes) if memory_bytes else machine, capabilities)


def site_imagined(name: str, memory_bytes: int) -> Site:
    """A device of an accelerator that need not be here. Raises BackendUnavailable for a name that none has."""
    capabilities = imagined_capabilities(name, memory_bytes)
    machine = Machine(
        *("cpu" if name == "cpu" else name, capabilities.dtypes, capabilities.preferred_dtype, memory_bytes),
        usable_cores(),
        block_sizes=capabilities.block_sizes,
        unified_memory=capabilities.unified_memory,
    )
    return Site(name, machine, capabilities)


def fit(model: LoadedModel, site: Site, options: EngineOptions) -> Fit:
    """With the first executor of the device that takes it; where none does, with what would change that."""
    found = _fit(model, site, options)
    if not found.problem:
        return found
    return replace(found, changes=tuple(dict.fromkeys(_changes(model, site, options))))


def _fit(model: LoadedModel, site: Site, options: EngineOptions) -> Fit:
    problems, free = list[str](), site.machine.free_bytes
    try:
        model = replace(model, config=model.config.served(options.context_length))
        dtype, graph = computing_dtype(options, site.machine), record(model.config, model.weights)
        workload = Workload(graph, model.weights, options, site.machine.device, dtype, site.capabilities)
        kinds = candidates(options, site.machine.device, site.capabilities)
    except ValueError as error:
        return Fit(site.name, free, problem=str(error))
    for name, target in kinds.items():
        try:
            kind = grouped(find(name, target), model.path, options.tensor_parallel or 1)
            refuse(kind, workload)
            footprint, sized = _sized(kind, workload, model, site.machine)
        except (ValueError, NotImplementedError) as error:
            problems.append(f"{name}: {error}")
            continue
        sizes = sized.context_length, sized.max_sequences, sized.kv_cache_tokens
        bytes_ = footprint.weights, footprint.kv_per_token, footprint.state_per_sequence
        dtype = dtype if name in EXACT else ""  # others have one of their own
        return Fit(site.name, free, name, dtype, *bytes_, *sizes, *_dequantised(name, workload))
    one = {problem.partition(": ")[2] for problem in problems}
    return Fit(site.name, free, problem=one.pop() if len(one) == 1 else "; ".join(problems))


def _sized(
    kind: ExecutorKind, workload: Workload, model: LoadedModel, machine: Machine
) -> tuple[Footprint, EngineOptions]:
    """Raises ValueError where there is no room, in bytes."""
    footprint = believable(kind.name, kind.footprint(workload))
    if footprint.weights > machine.free_bytes:
        needed, free = footprint.weights / 2**30, machine.free_bytes / 2**30
        raise FieldError("memory", f"the weights take {needed:.2f} GiB, {free:.2f} GiB are there")
    roomy = with_room(kind, workload, model.config, machine)
    footprint = believable(kind.name, kind.footprint(roomy))
    return footprint, resolve(roomy.options, model.config, footprint, machine)


def _dequantised(executor: str, workload: Workload) -> tuple[int, str]:
    """Matrices that the executor keeps dense although files have them quantised, and why."""
    if executor == "persistent" or executor not in KNOWN:  # which keeps all; of a stranger's nothing is known
        return 0, ""
    asked, able = workload.options.weights, executor in EXACT and "triton" in workload.facts
    wanted = asked.replace("dense", "") if able else ""
    quantised = [each for each in workload.weights.values() if each.format.quantised]
    dense = [each for each in quantised if not kept([each], wanted)]
    if not dense:
        return 0, ""
    if not able:
        return len(dense), f"the {executor} executor has no kernels for quantised weights on this device"
    if asked == "dense":
        return len(dense), "weights: dense asks for that"
    formats = ", ".join(sorted({each.format.value for each in dense}))
    return len(dense), f"no kernel of this device reads {formats} (4 bits and FP8 are read)"


def _changes(model: LoadedModel, site: Site, options: EngineOptions) -> Iterator[str]:
    """What makes it fit, each alone, the least first."""

    def fits(changed: LoadedModel, **more: Any) -> bool:
        return not _fit(changed, site, replace(options, **more)).problem

    wanted = options.context_length or model.config.context_length
    for length in CONTEXTS:
        if length < wanted and fits(model, context_length=length):
            yield f"a context of at most {length} tokens (--context-length {length})"
            break
    if site.capabilities.triton and options.weights == "auto":
        yield from (f"weights of {name} (--weights {name})" for name in ("fp8", "int4") if fits(model, weights=name))
    for bits, form in ((8, WeightFormat.INT8), (4, WeightFormat.INT4)):
        smaller = _as_if_quantised(model, form)
        if smaller is not model and fits(smaller):
            yield f"{bits} bits (polyfleet quantize {model.path} DESTINATION --to int{bits})"
    for ranks in RANKS if (options.tensor_parallel or 1) == 1 else ():
        if fits(model, tensor_parallel=ranks):
            yield f"{ranks} such devices (--tensor-parallel {ranks})"
            break
    for size in SIZES:
        machine = replace(site.machine, free_bytes=size * 2**30)
        if size * 2**30 > site.machine.free_bytes and not _fit(model, replace(site, machine=machine), options).problem:
            yield f"a device with {size} GiB free"
            break


def _as_if_quantised(model: LoadedModel, form: WeightFormat) -> LoadedModel:
    """With the matrices that `polyfleet quantize` would take, where it is a dense folder's; else the same."""
    if any(each.format.quantised for each in model.weights.values()) or model.path.endswith(".gguf"):
        return model
    graph = record(model.config, model.weights)
    matrices = {name for op in graph.ops if op.kind is OpKind.LINEAR for name in op.weights} - HEADS
    taken = {
        name: replace(each, format=form)
        for name, each in model.weights.items()
        if name in matrices and not name.endswith("router") and each.columns % QUANTISED_COLUMNS == 0
    }
    return replace(model, weights={**model.weights, **taken}) if taken else model


def headers_only(model: LoadedModel) -> LoadedModel:
    """The model with weights that have shapes and no numbers, so that nothing of them is ever read."""

    def header(weight: Weight) -> Weight:
        return replace(weight, data=torch.empty_like(weight.data, device="meta"))

    return replace(model, weights={name: header(each) for name, each in model.weights.items()})
