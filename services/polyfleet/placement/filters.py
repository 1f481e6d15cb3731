"""Who could serve a request at all: the first reason why a worker can't, and which weights a model's requests go to."""

from collections import Counter
from collections.abc import Iterable

from polyfleet.placement.fleet import PlacementRequest, Worker, WorkerState
from polyfleet.placement.policy import TenantRule

NOT_READY = {
    WorkerState.STARTING: "starting",
    WorkerState.LOADING: "loading its model",
    WorkerState.DRAINING: "draining",
    WorkerState.UNHEALTHY: "unhealthy",
    WorkerState.LOST: "lost",
    WorkerState.UNKNOWN: "in a state that this version does not know",
}
OTHER_FINGERPRINT = "has other weights or another tokenizer of this name"
OTHER_REVISION = "is of another revision than the one that the request was given to"
CIRCUIT_OPEN = "refused or lost all its last sequences"


def obstacle(request: PlacementRequest, worker: Worker, rule: TenantRule | None = None) -> str:
    """The first reason why the worker can't serve the request, for people; empty when it could.

    An open circuit is none: such a worker is spared only as long as there is another one.
    """
    if worker.model != request.model:
        return f"serves {worker.model or 'no model'}"
    if worker.state is not WorkerState.READY:
        return NOT_READY[worker.state]
    if worker.nonsense:
        return f"reports nonsense: {worker.nonsense}"
    if request.fingerprint not in (None, worker.fingerprint):
        return OTHER_FINGERPRINT
    if worker.worker_id in request.excluded:
        return "failed this request before"
    if missing := request.features - worker.features:
        return f"has no {', '.join(sorted(missing))}"
    return (forbidden(worker, rule) if rule else "") or too_small(request, worker)


def spared(request: PlacementRequest, worker: Worker) -> str:
    """Why a worker that could serve the request gets it only where there is no other."""
    return CIRCUIT_OPEN if request.revision in (None, worker.revision) else OTHER_REVISION


def too_small(request: PlacementRequest, worker: Worker) -> str:
    """Whether prompt and output together exceed its context or its whole KV pool; one of no known size is enough."""
    tokens = request.prompt_tokens + request.max_tokens
    if tokens > worker.context_length:
        return f"its context of {worker.context_length} tokens is shorter than {tokens}"
    capacity = worker.num_blocks * worker.block_size
    return f"its KV cache of {capacity} tokens is smaller than {tokens}" if 0 < capacity < tokens else ""


def forbidden(worker: Worker, rule: TenantRule) -> str:
    """Why the rule keeps the tenant from the worker; empty when it does not."""
    facts = (
        ("accelerator", worker.accelerator, rule.accelerators),
        ("deployment", worker.deployment, rule.deployments),
        ("dtype", worker.dtype, rule.dtypes),
    )
    for name, value, allowed in facts:
        if allowed and value not in allowed:
            return f"its {name} {value or '(none)'} is not among the tenant's: {', '.join(allowed)}"
    return ""


def room(worker: Worker) -> int:
    """Tokens of one sequence, prompt and output together, that a worker has room for."""
    pool = worker.num_blocks * worker.block_size
    return min(worker.context_length, pool) if pool else worker.context_length


def nonsense_in(worker: Worker) -> str:
    """What of a worker's report can't be true, as "what: value" for people; empty for sense."""
    rates = {
        "prefill rate": worker.prefill_tokens_per_second,
        "decode rate": worker.decode_tokens_per_second,
        "step time": worker.step_seconds,
        "step time of a sequence": worker.step_seconds_per_sequence,
        "step time of a token": worker.step_seconds_per_token,
        "fetch rate": worker.fetch_tokens_per_second,
        "import rate": worker.import_tokens_per_second,
    }
    for name, value in rates.items():
        if not 0 <= value <= 1e9:  # nor NaN
            return f"{name}: {value:g}"
    counts = {
        "running sequences": worker.running_sequences,
        "waiting sequences": worker.waiting_sequences,
        "waiting tokens": worker.waiting_prefill_tokens,
        "free blocks": worker.free_blocks,
    }
    for name, count in counts.items():
        if not 0 <= count < 2**31:
            return f"{name}: {count}"
    if worker.num_blocks and worker.free_blocks > worker.num_blocks:
        return f"free blocks: {worker.free_blocks} of {worker.num_blocks}"
    return ""


def prevailing_fingerprint(workers: Iterable[Worker]) -> str | None:
    """The fingerprint that most of these workers have, the least of several; None of no workers.

    Given the ready workers of one model name, the one that new requests go to: the same at every gateway.
    """
    counts = Counter(worker.fingerprint for worker in workers)
    return min(counts, key=lambda each: (-counts[each], each)) if counts else None


def outvoted(workers: Iterable[Worker]) -> frozenset[str]:
    """Ids of ready workers that get no new requests, since another fingerprint prevails among those of their model.

    Where all have revisions, each gets its share.
    """
    ready: dict[str, list[Worker]] = {}
    for worker in workers:
        if worker.state is WorkerState.READY:
            ready.setdefault(worker.model, []).append(worker)
    ready = {model: alike for model, alike in ready.items() if not all(each.revision for each in alike)}
    chosen = {model: prevailing_fingerprint(alike) for model, alike in ready.items()}
    return frozenset(w.worker_id for alike in ready.values() for w in alike if w.fingerprint != chosen[w.model])
