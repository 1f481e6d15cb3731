"""Which executors there are for a model on a device, and the first of them that works."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from numbers import Integral
from operator import attrgetter
from typing import Protocol, TypeVar, cast

from polyfleet.backends.protocol import KernelCapabilities
from polyfleet.engine.batching.parts import first_line
from polyfleet.engine.executor import Executor, Footprint
from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.kernels.ranks import Ranks
from polyfleet.kernels.weights.weight import Weights
from polyfleet.loading.progress import Progress
from polyfleet.wire.options import EngineOptions

log = logging.getLogger(__name__)

# A backend names others in `KernelCapabilities.executors` as entry points are written: "name = module:class".
KNOWN = {
    "captured": "polyfleet.executors.captured:CapturedExecutor",
    "eager": "polyfleet.executors.eager:EagerExecutor",
    "persistent": "polyfleet.executors.persistent:PersistentExecutor",
    "vulkan": "polyfleet.executors.vulkan:VulkanExecutor",
}
GROUP = "polyfleet.executors.ranks.group:GroupKind"  # of any of them in several processes
EXACT = ("captured", "eager")  # compute in the dtype that was asked for, whatever weights are stored as
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Workload:
    """A recorded model, and where and how it is to run. Until it is built for, only the weights' headers are read."""

    graph: KernelGraph
    weights: Weights
    options: EngineOptions  # as they were asked for
    device: str  # torch's name
    dtype: str  # of computation: float32, float16 or bfloat16
    capabilities: KernelCapabilities
    ranks: Ranks | None = None  # the group's, where `graph` is one rank's
    spent: Callable[[str], None] | None = None  # told of a weight that the executor has made its own: nobody reads it

    @property
    def facts(self) -> frozenset[str]:
        """The facts that implementations may demand, as words: graph_capture, triton, and instruction sets."""
        names = ("graph_capture", "triton", "flash_attention")
        flags = {name for name in names if getattr(self.capabilities, name)}
        return frozenset(flags | set(self.capabilities.instruction_sets))


class ExecutorKind(Protocol):
    """One way to run models: what an Executor's class offers."""

    name: str

    def refuses(self, workload: Workload) -> str:
        """Why it can't run this, in one sentence; "" when it can."""
        ...

    def footprint(self, workload: Workload) -> Footprint:
        """What it will take, estimated before anything is loaded."""
        ...

    def build(self, workload: Workload, progress: Progress) -> Executor:
        """The executor, with its weights on the device; raises ValueError where it can't be."""
        ...


@dataclass(frozen=True, slots=True)
class PassedOver:
    """An executor that was not taken, and why."""

    executor: str
    reason: str


class NoExecutor(ValueError):
    """No executor of a device runs the model, or none is called so; one sentence."""


def candidates(options: EngineOptions, device: str, capabilities: KernelCapabilities) -> dict[str, str]:
    """The executors that `options` mean on torch's `device` (of which `capabilities` speak): name -> module:class.

    `auto` means the device's own, the best first, or the EXACT ones where a dtype is asked for: others may compute
    in int8 where weights are quantised. Raises NoExecutor for options that can't be met.
    """
    possible: dict[str, str] = {}
    for entry in capabilities.executors:
        name, _, target = (part.strip() for part in entry.partition("="))
        possible[name] = target or KNOWN.get(name, "")
    wanted = options.executor
    if wanted == "auto":
        exact = {name: possible[name] for name in EXACT if name in possible}
        return exact if options.dtype != "auto" and exact else possible
    if wanted in possible:
        return {wanted: possible[wanted]}
    if wanted in KNOWN:
        raise NoExecutor(f"the {wanted} executor can't run on {device}: choose {' or '.join(('auto', *possible))}")
    raise NoExecutor(f"there is no executor {wanted!r}: choose one of {', '.join(('auto', *{**KNOWN, **possible}))}")


def find(name: str, target: str) -> ExecutorKind:
    """The class that `module:class` names. Raises ValueError where there is none."""
    module, _, attribute = target.partition(":")
    try:
        return cast(ExecutorKind, attrgetter(attribute)(import_module(module)))
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"the {name} executor can't be imported: {first_line(error)}") from None


def first_that_works(
    names: dict[str, str], attempt: Callable[[ExecutorKind], Result]
) -> tuple[Result, tuple[PassedOver, ...]]:
    """What `attempt` makes with the first executor that raises nothing, and the ones before it with their reasons.

    Whatever an executor raises, also to end the process, is its own failing, and the next one is tried. Raises
    NoExecutor when none is left.
    """
    passed: list[PassedOver] = []
    for name, target in names.items():
        try:
            return attempt(find(name, target)), tuple(passed)
        except (Exception, SystemExit) as error:
            sentence = str(error).strip().partition("\n")[0]
            reason = sentence if isinstance(error, ValueError) and sentence else first_line(error)
            log.warning("the %s executor is passed over: %s", name, reason)
            passed.append(PassedOver(name, reason))
            error.__traceback__ = error.__cause__ = error.__context__ = None  # their frames hold the executor's memory
            last = error
    if not passed:
        raise NoExecutor("this device has no executor")
    if isinstance(last, ValueError) and {each.reason for each in passed} == {str(last)}:
        raise last
    raise NoExecutor("; ".join(f"{each.executor}: {each.reason}" for each in passed))


def refuse(kind: ExecutorKind, workload: Workload) -> None:
    """Raise ValueError where the executor refuses the workload."""
    reason = kind.refuses(workload)
    if not reason and workload.options.max_adapters and not takes_adapters(kind):
        reason = "it computes with no adapters (max_adapters)"
    kept = workload.options.kv_dtype
    if not reason and kept != "auto" and kept not in getattr(kind, "kv_dtypes", ()):
        reason = f"it keeps no keys and values in {kept} (kv_dtype)"
    if reason:
        raise ValueError(reason)


def takes_adapters(kind: ExecutorKind) -> bool:
    """Whether it says so, or has what puts them in their places."""
    return bool(getattr(kind, "takes_adapters", hasattr(kind, "set_adapter")))


def believable(name: str, footprint: Footprint) -> Footprint:
    """The same footprint; raises ValueError for one that no executor has."""
    found: dict[str, int] = {}
    for field in ("weights", "kv_per_token", "workspace", "state_per_sequence", "local_per_token"):
        value = getattr(footprint, field, 0 if field == "local_per_token" else None)
        if not isinstance(value, Integral) or value < 0:
            raise ValueError(f"the {name} executor says that its {field} take {value!r} bytes")
        found[field] = int(value)
    return Footprint(**{**found, "kv_per_token": max(1, found["kv_per_token"])})
