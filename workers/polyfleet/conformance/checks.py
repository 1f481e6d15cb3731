"""The checks, each a function of a Subject that returns its measured detail, or raises Failed or Skipped.

Tolerances are relative to the largest reference value: float32 1e-4 (order of summation), float16 5e-3 and bfloat16
4e-2 (8 resp. 11 bits of mantissa, through a layer of sums).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polyfleet.backends.protocol import DeviceInfo, HardwareBackend, Health, KernelCapabilities
from polyfleet.conformance.synthetic import rare_ops, rare_weights, synthetic_model
from polyfleet.engine.canary.reference import Continuation, continue_greedily
from polyfleet.engine.choosing.executors import KNOWN, Workload, candidates, find, refuse
from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.lowering import fuse
from polyfleet.graph.ops import OpKind
from polyfleet.kernels.context import DTYPES, KernelContext
from polyfleet.kernels.dispatch import Implementation, Target, choose
from polyfleet.kernels.step import make_step
from polyfleet.kernels.table import implementations
from polyfleet.kernels.torch.reference import REFERENCE
from polyfleet.kernels.weights.weight import Weights
from polyfleet.kvcache.storage import KvStorage
from polyfleet.loading.progress import silent
from polyfleet.models.registry import record
from polyfleet.wire.answers import SampledToken
from polyfleet.wire.options import EngineOptions

TOLERANCES = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 4e-2}
NUM_BLOCKS, BLOCK_SIZE, NUM_TOKENS = 16, 16, 20
PROMPTS = tuple(tuple(range(index, index + length)) for index, length in ((3, 5), (40, 33), (90, 1)))
# A single token, a chunk over block borders, and a whole prompt: ids, first position, blocks.
SEQUENCES = ((range(3, 4), 0, [4]), (range(40, 73), 0, [9, 1, 6]), (range(90, 97), 0, [11]))
LEAST_EQUAL = 0.5  # of all tokens; with fewer before close calls, a device has shown too little
CLOSE_CALL = 0.05  # in log probability between the best token and the second
PROBE_BYTES = 256 * 2**20


class Failed(Exception):
    """The backend does not do what it says."""


class Skipped(Exception):
    """This machine can't be asked."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The backend under test, activated."""

    backend: HardwareBackend
    info: DeviceInfo
    capabilities: KernelCapabilities
    device: str  # torch's name


def need_torch(subject: Subject) -> None:
    """Raise Skipped on a device that is none of torch's; its own executor is checked by `greedy_tokens`."""
    if "eager" not in subject.capabilities.executors:
        raise Skipped("torch has no such device")


def devices(subject: Subject) -> str:
    """Indices in order, names and architectures known."""
    found = subject.backend.devices()
    if [each.index for each in found] != list(range(len(found))):
        raise Failed(f"indices are {[each.index for each in found]}")
    unnamed = [each.index for each in found if "unknown" in (each.name, each.architecture)]
    if unnamed:
        raise Failed(f"devices {unnamed} have no name or architecture")
    return "; ".join(f"{each.index}: {each.name} ({each.architecture})" for each in found)


def dtypes(subject: Subject) -> str:
    """Every floating type that is claimed multiplies matrices rightly."""
    need_torch(subject)
    generator = torch.Generator().manual_seed(1)
    left, right = (torch.randn(64, 64, generator=generator, dtype=torch.float64) for _ in range(2))
    errors = []
    for name in sorted(subject.capabilities.dtypes & DTYPES.keys()):
        dtype = DTYPES[name]
        exact = left.to(dtype).double() @ right.to(dtype).double()
        actual = left.to(subject.device, dtype) @ right.to(subject.device, dtype)
        errors.append(f"{name} {_within(actual, exact, dtype, name):.1e}")
    return "largest relative errors: " + ", ".join(errors)


def memory(subject: Subject) -> str:
    """An allocation shows in the free memory, and its end too."""
    if subject.device == "cpu":
        raise Skipped("a host's free memory moves with its other programs")
    need_torch(subject)
    before = subject.backend.memory().free_bytes
    block = torch.empty(PROBE_BYTES, dtype=torch.uint8, device=subject.device).fill_(1)
    subject.backend.synchronize()
    taken = before - subject.backend.memory().free_bytes
    del block
    if taken < PROBE_BYTES * 0.9:
        raise Failed(f"{PROBE_BYTES} bytes were allocated, free memory fell by {taken}")
    return f"free memory fell by {taken / 2**20:.0f} MiB for {PROBE_BYTES / 2**20:.0f} MiB"


def operators(subject: Subject) -> str:
    """Every op as dispatch chooses it, in each dtype, against the reference in float32 on the CPU."""
    need_torch(subject)
    details = []
    for name in sorted(subject.capabilities.dtypes & DTYPES.keys()):
        worst = max(_operator_errors(subject, DTYPES[name]).items(), key=lambda each: each[1])
        details.append(f"{name}: worst {worst[0]} {worst[1]:.1e} of {TOLERANCES[DTYPES[name]]:.0e}")
    return "; ".join(details)


def graph_capture(subject: Subject) -> str:
    """A captured multiplication replays with new inputs."""
    graphs = subject.backend.graphs()
    if graphs is None:
        raise Skipped("this accelerator has no graph capture")
    x = torch.ones(64, 64, device=subject.device)
    y = x @ x  # warm-up outside the capture
    subject.backend.synchronize()
    graph = graphs.new_graph()
    with graphs.capture(graph):
        y = x @ x
    x.fill_(2.0)
    graph.replay()
    subject.backend.synchronize()
    if float(y[0, 0]) != 256.0:
        raise Failed(f"a replay computed {float(y[0, 0])} instead of 256")
    return "captured and replayed with new inputs"


def greedy_tokens(subject: Subject) -> str:
    """Greedy tokens of a small model equal the CPU reference's on each of the device's executors, batched.

    At least LEAST_EQUAL of them all have to. From a close call on a prompt is not compared: executors add up in
    different orders, the CPU's keeps KV in float16.
    """
    host = EngineOptions(executor="eager", dtype="float32", block_size=BLOCK_SIZE)
    expected = _tokens(_generate(_workload(subject, host, "cpu"), KNOWN["eager"]))
    details = []
    names = candidates(EngineOptions(), subject.device, subject.capabilities)
    for name, target in names.items():
        options = EngineOptions(executor=name, dtype="float32", block_size=BLOCK_SIZE)
        try:
            answers = _generate(_workload(subject, options, subject.device), target)
        except ValueError as error:
            details.append(f"{name} is not here ({error})")
            continue
        pairs = enumerate(zip(expected, _tokens(answers), strict=True))
        count, total = sum(_agreeing(prompt, *pair) for prompt, pair in pairs), len(expected) * NUM_TOKENS
        equal = f"{name}: {count} of {total} tokens equal the CPU reference"
        if count < LEAST_EQUAL * total:
            raise Failed(f"{equal}, which is too few, though the others are close calls")
        details.append(equal)
    if all("is not here" in each for each in details):
        raise Failed("; ".join(details))
    return "; ".join(details)


def _agreeing(prompt: int, reference: list[SampledToken], mine: list[SampledToken]) -> int:
    """How many tokens are equal before the first close call that differs; raises Failed for any other difference."""
    for index, (wanted, found) in enumerate(zip(reference, mine, strict=True)):
        if wanted.token_id != found.token_id:
            lead = wanted.top_logprobs[0] - wanted.top_logprobs[1]
            if lead > CLOSE_CALL:
                raise Failed(
                    f"prompt {prompt} differs from the CPU reference at token {index}, which leads by {lead:.2f}"
                )
            return index
    return len(reference)


def telemetry(subject: Subject) -> str:
    """Readings arrive and no device is unhealthy; what the vendor withholds is listed."""
    readings = subject.backend.telemetry()
    if len(readings) != len(subject.backend.devices()):
        raise Failed(f"{len(readings)} readings for {len(subject.backend.devices())} devices")
    broken = [f"{each.index}: {each.reason}" for each in readings if each.health is Health.UNHEALTHY]
    if broken:
        raise Failed("unhealthy: " + "; ".join(broken))
    fields = ("temperature_celsius", "power_watts", "utilization_ratio", "memory_used_bytes", "errors_total")
    known = [name for name in fields if all(getattr(each, name) is not None for each in readings)]
    withheld = [name for name in fields if name not in known]
    return f"known: {', '.join(known) or 'nothing'}; withheld: {', '.join(withheld) or 'nothing'}"


def _within(actual: Tensor, reference: Tensor, dtype: torch.dtype, name: str) -> float:
    """The relative error; raises Failed over the tolerance or for what is not finite."""
    mine, theirs = actual.detach().cpu().double(), reference.detach().cpu().double()
    if not bool(mine.isfinite().all()):
        raise Failed(f"{name} gave numbers that are not finite")
    error = float((mine - theirs).abs().max() / theirs.abs().max().clamp(min=1e-12))
    if error > TOLERANCES[dtype]:
        raise Failed(f"{name} in {dtype} is off by {error:.1e}, over {TOLERANCES[dtype]:.0e}")
    return error


def _operator_errors(subject: Subject, dtype: torch.dtype) -> dict[str, float]:
    """Run the model op by op on both sides, each op fed with the reference's inputs."""
    model, device = synthetic_model(), torch.device(subject.device)
    graph = record(model.config, model.weights)
    facts = Workload(graph, model.weights, EngineOptions(), subject.device, "", subject.capabilities).facts
    chosen = choose(implementations(), Target(device.type, dtype, facts))
    tables = (choose(REFERENCE, Target("cpu", torch.float32)), chosen)
    errors: dict[str, float] = {}
    with torch.inference_mode():
        # The model as it is recorded and as executors run it, and what models seldom have.
        weights = {**model.weights, **rare_weights()}
        for form in (graph, fuse(graph), rare_ops(weights)):
            places = ((torch.device("cpu"), torch.float32), (device, dtype))
            sides = [_context(form, weights, *place) for place in places]
            for name, error in _graph_errors(form, tables, sides):
                errors[name] = max(error, errors.get(name, 0.0))
    return errors


def _context(graph: KernelGraph, weights: Weights, device: torch.device, dtype: torch.dtype) -> KernelContext:
    storage = KvStorage.allocate(
        graph.caches, NUM_BLOCKS, BLOCK_SIZE, dtype, device, states=graph.states, slots=len(SEQUENCES)
    )
    return KernelContext(weights, device, dtype, storage.caches, BLOCK_SIZE, storage.states)


def _graph_errors(
    graph: KernelGraph, tables: Sequence[Mapping[OpKind, Implementation]], sides: Sequence[KernelContext]
) -> Iterator[tuple[str, float]]:
    """The relative error of each op's outputs."""
    steps = [make_step(SEQUENCES, BLOCK_SIZE, each.device) for each in sides]
    values: dict[int, Tensor] = {0: steps[0].token_ids}
    for op in graph.ops:
        inputs = [values[value] for value in op.inputs]
        moved = inputs if op.kind is OpKind.EMBEDDING else [each.to(sides[1].device, sides[1].dtype) for each in inputs]
        results = []
        for table, side, step, operands in zip(tables, sides, steps, (inputs, moved), strict=True):
            implementation = table[op.kind]
            plan = implementation.plan(side, step, op.attributes)
            operands = [each.to(side.device) for each in operands]
            results.append(_outputs(implementation.bind(op, side)(plan, *operands)))
        for value, theirs, mine in zip(op.outputs, *results, strict=True):
            values[value] = theirs
            yield op.kind.value, _within(mine, theirs, sides[1].dtype, op.kind.value)


def _outputs(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def _workload(subject: Subject, options: EngineOptions, device: str) -> Workload:
    model = synthetic_model()
    graph = record(model.config, model.weights)
    return Workload(graph, model.weights, options, device, "float32", subject.capabilities)


def _generate(workload: Workload, target: str) -> list[Continuation]:
    """NUM_TOKENS greedy tokens for three prompts, computed as one batch. Raises ValueError where nothing is built."""
    kind = find(workload.options.executor, target)
    refuse(kind, workload)
    executor = kind.build(workload, silent)
    try:
        return continue_greedily(executor, PROMPTS, NUM_TOKENS)
    finally:
        executor.close()


def _tokens(answers: Sequence[Continuation]) -> list[list[SampledToken]]:
    for answer in answers:
        if answer.error:
            raise Failed(f"a step failed: {answer.error}")
    return [answer.tokens for answer in answers]


CHECKS: tuple[Callable[[Subject], str], ...] = (
    devices,
    dtypes,
    memory,
    operators,
    graph_capture,
    greedy_tokens,
    telemetry,
)
