"""From a path and an operator's options to everything that an Engine needs: the one place of default wiring."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from polyfleet.backends import BackendRegistry, KernelCapabilities
from polyfleet.backends.choice import user_config
from polyfleet.backends.cpu import usable_cores
from polyfleet.engine.batch import Executor
from polyfleet.engine.canary import Canary
from polyfleet.engine.canary_reference import canary_for
from polyfleet.engine.executors import ExecutorKind, Wanted, candidates, first_that_works
from polyfleet.engine.request import EngineOptions
from polyfleet.engine.sizing import Machine, resolve
from polyfleet.loading.fingerprint import fingerprint
from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel
from polyfleet.wire.limits import FieldError

Progress = Callable[[float, str], None]
READING_SHARE = 0.5  # of the progress shown; the rest is preparing weights on the device


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """A model on its device, and the options with nothing left open."""

    model: LoadedModel
    executor: Executor
    options: EngineOptions
    canary: Canary | None = None  # where one was wanted and the context has room for it
    fingerprint: str = ""


def load(path: str, options: EngineOptions, progress: Progress) -> LoadedEngine:
    """Load a model. Raises ModelFileError, BackendUnavailable or ValueError, each with one sentence."""
    options = with_user_choice(options)
    machine, capabilities = open_machine(options.device)
    progress(0.0, "reading the model")
    model = load_model(path, lambda share: progress(share * READING_SHARE, "reading the model"))
    identity = fingerprint(model)
    reading = _Reading(model, options, machine, capabilities, progress)
    names = candidates(options, machine.device, capabilities)
    executor, resolved = first_that_works(names, model, reading.build)
    progress(1.0, "ready")
    return LoadedEngine(model, executor, resolved, reading.canary, identity)


@dataclass(slots=True)
class _Reading:
    """A model that was read, on its way to an executor; each one tried is sized by its own footprint."""

    model: LoadedModel
    options: EngineOptions
    machine: Machine
    capabilities: KernelCapabilities
    progress: Progress
    canary: Canary | None = None

    def build(self, kind: ExecutorKind) -> tuple[Executor, EngineOptions]:
        """The executor, and the options with nothing left open. Raises ValueError, FieldError where it can't be."""
        model, machine = self.model, self.machine
        resolved = resolve(self.options, model.config, lambda dtype: kind.footprint(model, dtype), machine)
        if self.options.canary and self.canary is None:
            self.canary = self._canary(resolved.context_length)
        preparing = f"preparing the weights on {machine.device} in {resolved.dtype}"
        wanted = Wanted(
            model,
            replace(resolved, dtype=self.options.dtype),  # whether one was asked for decides what is computed in int8
            machine.device,
            resolved.kv_cache_tokens // resolved.block_size,
            resolved.block_size,
            self.capabilities,
            lambda share: self.progress(READING_SHARE + share * (1 - READING_SHARE), preparing),
        )
        return kind.build(wanted), resolved

    def _canary(self, context_length: int) -> Canary | None:
        return canary_for(
            self.model,
            context_length,
            threads=self.options.threads,
            progress=lambda _: self.progress(READING_SHARE, "computing the canary's answer in float32"),
        )


def with_user_choice(options: EngineOptions) -> EngineOptions:
    """What the caller left as it was comes from this user's choice, unless that was made for another backend."""
    chosen = user_config()
    backend = chosen.pop("backend", "auto")
    if options.device.partition(":")[0] not in ("auto", backend):
        return options
    untouched = EngineOptions()
    taken = {key: value for key, value in chosen.items() if getattr(options, key) == getattr(untouched, key)}
    return replace(options, device=backend if options.device == "auto" else options.device, **taken)


def open_machine(device: str) -> tuple[Machine, KernelCapabilities]:
    """Select a device by `auto`, its family's name, or both that and an index: `cuda:1`.

    Raises BackendUnavailable with the reason, FieldError for an index that is none.
    """
    family, _, index = device.partition(":")
    backend = BackendRegistry.get(family)
    devices = {str(each.index): each for each in backend.devices()}
    if (index or "0") not in devices:
        raise FieldError("device", f"must have an index among {', '.join(devices)}, not {device}")
    found = devices[index or "0"]
    capabilities = backend.capabilities(found)
    name = backend.activate(found.index)
    free = backend.memory(found.index).free_bytes
    machine = Machine(
        *(name, capabilities.dtypes, capabilities.preferred_dtype, free, usable_cores()),
        block_sizes=capabilities.block_sizes,
        unified_memory=capabilities.unified_memory,
    )
    return machine, capabilities
