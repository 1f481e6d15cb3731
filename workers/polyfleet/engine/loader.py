"""From a path and an operator's options to everything that an Engine needs: the one place of default wiring."""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from polyfleet.engine.batching.parts import first_line
from polyfleet.engine.canary.canary import Canary, CanarySource
from polyfleet.engine.canary.later import CanaryLater, starts_later
from polyfleet.engine.canary.reference import Source, canary_for, source_of
from polyfleet.engine.choosing.drafting import NOTHING, beside, together
from polyfleet.engine.choosing.executors import (
    GROUP,
    ExecutorKind,
    PassedOver,
    Workload,
    believable,
    candidates,
    find,
    first_that_works,
    refuse,
)
from polyfleet.engine.choosing.machines import open_machine
from polyfleet.engine.choosing.sizing import Machine, capacity_of, computing_dtype, resolve, window_of
from polyfleet.engine.choosing.trial import trial, try_drafts
from polyfleet.engine.executor import Executor, Footprint
from polyfleet.engine.images.vision import VisionTower
from polyfleet.engine.speculation.draft_model import DraftModel
from polyfleet.graph.adapt import adaptable
from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.loading.fingerprint import fingerprint
from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel, spending, without_blocks
from polyfleet.loading.shapes import check_numbers
from polyfleet.models.config import ModelConfig
from polyfleet.models.registry import record
from polyfleet.wire.limits import FieldError
from polyfleet.wire.options import EngineOptions

log = logging.getLogger(__name__)

Progress = Callable[[float, str], None]
FEWER_ROWS = (1024, 512, 256, 128)  # of a step, where an accelerator's usual 2,048 leave no memory
READING_SHARE = 0.5  # of the progress shown; the rest is preparing weights on the device


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What an Engine is made of: a model on its device, and the options with nothing left open."""

    model: LoadedModel
    executor: Executor
    options: EngineOptions
    canary: CanarySource | None = None  # where one was wanted and the context has room for it
    fingerprint: str = ""
    passed_over: tuple[str, ...] = ()  # executors that were not taken, with the reason
    no_drafts: str = ""  # why no token is drafted, where some are wanted
    draft_model: DraftModel | None = None
    adaptable: tuple[str, ...] = ()  # weights that adapters may change
    tower: VisionTower | None = None  # where it sees images
    device: str = "cpu"  # torch's name


def load(path: str, options: EngineOptions, progress: Progress) -> EngineParts:
    """Load a model. Raises ModelFileError, BackendUnavailable or ValueError, each with one sentence."""

    def read(share: float) -> None:
        progress(share * READING_SHARE, "reading the model")

    alone = options.tensor_parallel <= 1  # else each rank looks through what it has

    def read_for(device: str) -> LoadedModel:
        return load_model(path, read, numbers=alone and device == "cpu")  # other devices look as they take weights

    parts = prepare_engine(read_for, options, progress)
    if alone and parts.device != "cpu":
        _check_taken(parts)
    return replace(parts, model=without_blocks(parts.model))


def _check_taken(parts: EngineParts) -> None:
    """Raise ModelFileError, and close what there is, for weights that are not finite.

    The host looks at those alone of which the executor does not say that they are.
    """
    finite: Callable[[], frozenset[str]] = getattr(parts.executor, "finite_weights", frozenset)
    known, weights = finite(), parts.model.weights
    try:
        check_numbers(parts.model.path, {name: each for name, each in weights.items() if name not in known})
    except BaseException:
        for each in (parts.canary, parts.tower, parts.draft_model, parts.executor):
            if each is not None:
                each.close()
        raise


def prepare_engine(
    read: Callable[[str], LoadedModel], options: EngineOptions, progress: Progress, graph: KernelGraph | None = None
) -> EngineParts:
    """The model that `read` gives for torch's name of the device, on it. Raises as `load`.

    Without `graph` it is as its architecture records it.
    """
    size = options.tensor_parallel or 1
    machine, capabilities = open_machine(options.device, size)
    if capabilities.divisible and size > 1:
        options = replace(options, threads=max(1, options.threads // size or machine.cores))
    progress(0.0, "reading the model")
    model = read(machine.device)
    model = replace(model, config=model.config.served(options.context_length))
    dtype, graph = computing_dtype(options, machine), graph or record(model.config, model.weights)
    mark, source = fingerprint(model), None
    if options.canary and not model.config.embeds_only:
        source = source_of(model)
    later = source is not None and starts_later(source, machine.device)
    spent = spending(model) if size == 1 and (later or not (source and source.computed)) else None
    workload = Workload(graph, model.weights, options, machine.device, dtype, capabilities, spent=spent)

    def preparing(share: float) -> None:
        progress(READING_SHARE + share * (1 - READING_SHARE), f"preparing the weights on {machine.device}")

    tower, machine = _tower(workload, model, machine)
    executor, resolved, passed_over, draft_model = _prepared(workload, model, machine, preparing)
    tower = _taken(tower, executor)
    canary: CanarySource | None = None
    if source is not None and later:
        canary = CanaryLater.of(model.path, model.config, options.context_length, resolved.context_length)
    elif source is not None:
        canary = _canary(model, resolved, source, progress)
    progress(1.0, "ready")
    reasons = tuple(f"{each.executor}: {each.reason}" for each in passed_over)
    no_drafts = _no_drafts(executor, model.config, resolved, graph)
    found = (model, executor, resolved, canary, mark, reasons, no_drafts, draft_model, adaptable(graph), tower)
    return EngineParts(*found, machine.device)


def _canary(model: LoadedModel, options: EngineOptions, source: Source, progress: Progress) -> Canary | None:
    """Of resolved options; None where the context is too short for one."""
    return canary_for(
        model,
        options.context_length,
        source,
        threads=options.threads,
        progress=lambda _: progress(1.0, "computing the canary's answer in float32"),
    )


def _no_drafts(executor: Executor, config: ModelConfig, options: EngineOptions, graph: KernelGraph) -> str:
    """Why no tokens are drafted where some are wanted, which is logged; "": some are, or none are wanted."""
    reason = speculation_refused(executor, config, options, graph)
    if reason:
        log.warning("no tokens are drafted: %s", reason)
    return reason


def _tower(workload: Workload, model: LoadedModel, machine: Machine) -> tuple[VisionTower | None, Machine]:
    """What sees, beside a model that has such a part, and what it leaves; None where it can't run, which is logged."""
    if model.vision is None:
        return None, machine
    try:
        if (workload.options.tensor_parallel or 1) > 1:
            raise ValueError("ranks that compute a model together take none")
        tower = VisionTower.compile(model.vision, workload, machine)
    except ValueError as error:
        log.warning("images are not taken: %s", error)
        return None, machine
    return tower, replace(machine, free_bytes=max(0, machine.free_bytes - tower.num_bytes))


def _taken(tower: VisionTower | None, executor: Executor) -> VisionTower | None:
    """The tower, unless the model's executor has no use for it, which is logged."""
    if tower is None or getattr(executor, "takes_rows", False):
        return tower
    log.warning("images are not taken: the %s executor computes from tokens alone", executor.name)
    tower.close()
    return None


def _prepared(
    workload: Workload, model: LoadedModel, machine: Machine, progress: Callable[[float], None]
) -> tuple[Executor, EngineOptions, tuple[PassedOver, ...], DraftModel | None]:
    """The first executor that works, the options resolved for it, those passed over, and a model that drafts."""
    options, drafting = workload.options, beside(workload, model, progress)

    def prepare(kind: ExecutorKind) -> tuple[Executor, EngineOptions]:
        kind = grouped(kind, model.path, options.tensor_parallel or 1)
        return fit(kind, workload, model, machine, progress, drafting.footprint)

    try:
        names = candidates(options, machine.device, workload.capabilities)
        (executor, resolved), passed_over = first_that_works(names, prepare)
        return executor, resolved, passed_over, drafting.allocate(capacity_of(resolved))  # in one pool
    except BaseException:
        drafting.close()
        raise


def grouped(kind: ExecutorKind, path: str, size: int) -> ExecutorKind:
    """The executor for `size` ranks of the model at `path`; the same where that is one."""
    if size == 1:
        return kind
    group: Callable[[ExecutorKind, str], ExecutorKind] = find("group", GROUP)  # type: ignore[assignment]
    return group(kind, path)


def fit(
    kind: ExecutorKind,
    workload: Workload,
    model: LoadedModel,
    machine: Machine,
    progress: Callable[[float], None],
    beside: Footprint = NOTHING,
) -> tuple[Executor, EngineOptions]:
    """Build an executor and give it the room that the machine has; whatever is raised is a reason not to take it.

    It is sized twice: by its estimate, so that what can't fit is refused before it is built, and by what it measures,
    each time with what stands beside it.
    """
    refuse(kind, workload)
    workload = with_room(kind, workload, model.config, machine, beside)
    executor = kind.build(workload, progress)
    try:
        measured = together(believable(kind.name, executor.measure()), beside)
        resolved = resolve(workload.options, model.config, measured, machine)
        capacity = capacity_of(resolved, window_of(executor, model.config))
        try:
            executor.allocate(capacity)
        except MemoryError:
            raise ValueError(f"the memory that the {kind.name} executor measured is not there") from None
        widths, graph = workload.graph.widths, workload.graph
        trial(executor, capacity, widths[graph.logits], widths[graph.hidden])
    except BaseException:
        with suppress(Exception):  # what went wrong before is the reason
            executor.close()
        raise
    return executor, resolved


def speculation_refused(executor: Executor, config: ModelConfig, options: EngineOptions, graph: KernelGraph) -> str:
    """Why the executor can't verify the drafts that are wanted, in one sentence; "" where it can, or none are."""
    capacity = capacity_of(options, window_of(executor, config))
    if not capacity.drafts:
        return ""
    if not graph.caches:
        return "the model keeps no cache, and so goes on with nothing"
    if graph.states:
        return "the model's recurrent state can't go back before drafts that prove wrong"
    if capacity.step_tokens <= capacity.drafts or options.context_length < 2 + capacity.drafts:
        return f"steps and contexts have no room for a token and {capacity.drafts} drafts"
    try:
        try_drafts(executor, capacity, graph.widths[graph.logits])
    except Exception as error:
        return str(error) if isinstance(error, ValueError) and str(error) else first_line(error)
    return ""


def with_room(
    kind: ExecutorKind, workload: Workload, config: ModelConfig, machine: Machine, beside: Footprint = NOTHING
) -> Workload:
    """The workload, with fewer rows a step where nobody asked for a number and the usual one leaves no memory.

    Raises FieldError where not even the fewest leave any.
    """
    options, problem = workload.options, None
    for rows in (options.step_tokens, *(() if options.step_tokens else FEWER_ROWS)):
        try:
            tried = replace(workload, options=replace(options, step_tokens=rows))
            resolve(tried.options, config, together(believable(kind.name, kind.footprint(tried)), beside), machine)
        except FieldError as error:
            problem = problem or error
        else:
            return tried
    assert problem is not None
    raise problem
