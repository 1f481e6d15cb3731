"""What a model is and where it fits, told before it is loaded: by the same sizing as a worker's."""

from collections import Counter
from dataclasses import dataclass

from polyfleet.backends import BackendRegistry
from polyfleet.engine.executors import Workload, candidates, find, refuse
from polyfleet.engine.loader import open_machine, with_room
from polyfleet.engine.sizing import computing_dtype, resolve
from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel
from polyfleet.models.registry import ARCHITECTURES, record
from polyfleet.wire.options import EngineOptions


@dataclass(frozen=True, slots=True)
class Fit:
    """How a model fits a device: bytes and tokens, or in one sentence why it does not."""

    device: str
    executor: str = ""
    weight_bytes: int = 0
    kv_bytes_per_token: int = 0
    context_length: int = 0
    max_sequences: int = 0
    kv_cache_tokens: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a model's files say of it. `formats`: how many numbers are stored in each."""

    path: str
    name: str
    architecture: str
    parameters: int
    formats: dict[str, int]
    context_length: int
    vocabulary_size: int
    tokenizer: bool
    embeds_only: bool
    fits: tuple[Fit, ...]


def inspect_model(path: str) -> Inspection:
    """Reads headers, and few weights. Raises ModelFileError."""
    model = load_model(path, numbers=False)
    formats: Counter[str] = Counter()
    for weight in model.weights.values():
        formats[weight.format.value] += weight.rows * weight.columns
    config, names = model.config, BackendRegistry.list_available()
    return Inspection(
        model.path,
        config.name,
        ARCHITECTURES[config.architecture].title,
        sum(formats.values()),
        dict(formats.most_common()),
        config.context_length,
        config.vocabulary_size,
        model.tokenizer is not None,
        config.embeds_only,
        tuple(_fit(model, name) for name in names),
    )


def _fit(model: LoadedModel, device: str) -> Fit:
    """With the first executor of the device that takes it."""
    options, problems = EngineOptions(device=device), list[str]()
    try:
        machine, capabilities = open_machine(device)
        dtype, graph = computing_dtype(options, machine), record(model.config, model.weights)
        workload = Workload(graph, model.weights, options, machine.device, dtype, capabilities)
        kinds = candidates(options, machine.device, capabilities)
    except ValueError as error:
        return Fit(device, problem=str(error))
    for name, target in kinds.items():
        try:
            kind = find(name, target)
            refuse(kind, workload)
            roomy = with_room(kind, workload, model.config, machine)
            footprint = kind.footprint(roomy)
            sized = resolve(roomy.options, model.config, footprint, machine)
        except ValueError as error:
            problems.append(f"{name}: {error}")
            continue
        sizes = sized.context_length, sized.max_sequences, sized.kv_cache_tokens
        return Fit(device, name, footprint.weights, footprint.kv_per_token, *sizes)
    return Fit(device, problem="; ".join(problems))
