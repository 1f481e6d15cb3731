"""`place()`: which worker serves a request, and why not the others. Pure: frozen facts in, a frozen Placement out.

Filter, score, pick. A filter keeps the workers that could serve the request and names a reason for each that it drops;
the score of a kept worker is the wait for the first token that its last report lets us expect; the pick is the least
wait, among workers that wait about as little the one with the least of its slots taken, and among equals of those the
one that the request's key hashes to.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Annotated

import msgspec
from msgspec import Meta

from polyfleet.placement.fleet import FleetSnapshot, Placement, PlacementRequest, Verdict, Worker, WorkerState

Rate = Annotated[float, Meta(gt=0, le=1e9)]
Slack = Annotated[float, Meta(ge=0, le=86_400)]


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Assumptions of the score where a worker's report says nothing, and what counts as a tie: `gateway.placement`.

    A worker that has not served yet is taken for as fast as the fastest one of its accelerator that has; where there is
    none, optimistically, so that it is tried and its true rates become known with its first request.
    """

    unknown_prefill_tokens_per_second: Annotated[Rate, Meta(description="where no worker of its kind has served")] = 1e4
    unknown_decode_tokens_per_second: Annotated[Rate, Meta(description="of each sequence there")] = 100.0
    remaining_tokens: Annotated[Rate, Meta(description="of a running sequence until its slot is free")] = 128.0
    tie_ratio: Annotated[Slack, Meta(description="waits that are longer than the least by this share of it tie")] = 0.1
    tie_seconds: Annotated[Slack, Meta(description="and so do those that are longer by so many seconds")] = 0.005


@dataclass(frozen=True, slots=True)
class Filtered:
    """What a filter made of some workers: `kept`, and of each other one its id and the reason it was dropped."""

    kept: tuple[Worker, ...]
    dropped: tuple[tuple[str, str], ...]


_NOT_READY = {
    WorkerState.STARTING: "starting",
    WorkerState.LOADING: "loading its model",
    WorkerState.DRAINING: "draining",
    WorkerState.UNHEALTHY: "unhealthy",
    WorkerState.LOST: "lost",
    WorkerState.UNKNOWN: "in a state that this version does not know",
}


OTHER_FINGERPRINT = "has other weights or another tokenizer of this name"


def place(request: PlacementRequest, fleet: FleetSnapshot, policy: Policy | None = None) -> Placement:
    """The worker with the least expected wait for its first token; `worker` is None when every one was dropped.

    There is one verdict for each worker of `fleet`, in its order. The same arguments always give the same Placement,
    and more load on a worker never makes it win where it did not before.
    """
    policy = policy or Policy()
    kept, reasons = filter_workers(request, fleet.workers)
    waits = {
        worker.worker_id: expected_wait(request, each, policy)
        for worker, each in zip(kept, _assumed(kept), strict=True)
    }
    verdicts = tuple(
        Verdict(worker.worker_id, dropped=reasons.get(worker.worker_id, ""))
        if worker.worker_id in reasons
        else Verdict(worker.worker_id, expected_wait_seconds=waits[worker.worker_id])
        for worker in fleet.workers
    )
    return Placement(pick(kept, waits, request.key, policy), verdicts)


def filter_workers(request: PlacementRequest, workers: Sequence[Worker]) -> tuple[tuple[Worker, ...], dict[str, str]]:
    """All filters in turn: the workers that could serve `request`, and for each other one the first reason."""
    kept, reasons = tuple(workers), dict[str, str]()
    for apply in FILTERS:
        filtered = apply(request, kept)
        kept = filtered.kept
        reasons.update(filtered.dropped)
    return kept, reasons


def keep_model(request: PlacementRequest, workers: Iterable[Worker]) -> Filtered:
    """Workers that serve the request's model."""
    return _filtered((w, "" if w.model == request.model else f"serves {w.model or 'no model'}") for w in workers)


def keep_ready(request: PlacementRequest, workers: Iterable[Worker]) -> Filtered:
    """Workers that are ready: loaded, healthy, heard of, not draining."""
    return _filtered((w, _NOT_READY.get(w.state, "")) for w in workers)


def keep_fingerprint(request: PlacementRequest, workers: Iterable[Worker]) -> Filtered:
    """Workers whose weights and tokenizer are those of the request."""
    wanted = request.fingerprint
    return _filtered((w, OTHER_FINGERPRINT if wanted not in (None, w.fingerprint) else "") for w in workers)


def prevailing_fingerprint(workers: Iterable[Worker]) -> str | None:
    """The fingerprint that most of these workers have, the least of several; None of no workers.

    Given the ready workers of one model name, the one that new requests go to: the same at every gateway.
    """
    counts = Counter(worker.fingerprint for worker in workers)
    return min(counts, key=lambda each: (-counts[each], each)) if counts else None


def outvoted(workers: Iterable[Worker]) -> frozenset[str]:
    """Ids of ready workers that get no new requests, since another fingerprint prevails among those of their model."""
    ready: dict[str, list[Worker]] = {}
    for worker in workers:
        if worker.state is WorkerState.READY:
            ready.setdefault(worker.model, []).append(worker)
    chosen = {model: prevailing_fingerprint(alike) for model, alike in ready.items()}
    return frozenset(w.worker_id for alike in ready.values() for w in alike if w.fingerprint != chosen[w.model])


def keep_not_excluded(request: PlacementRequest, workers: Iterable[Worker]) -> Filtered:
    """Workers that have not failed this request before."""
    return _filtered((w, "failed this request before" if w.worker_id in request.excluded else "") for w in workers)


def keep_circuit_closed(request: PlacementRequest, workers: Iterable[Worker]) -> Filtered:
    """Workers that have not just refused or lost one sequence after another; where there is no other, those too."""
    workers = tuple(workers)
    if all(worker.circuit_open for worker in workers):
        return Filtered(workers, ())
    return _filtered((w, "refused or lost all its last sequences" if w.circuit_open else "") for w in workers)


def keep_long_enough(request: PlacementRequest, workers: Iterable[Worker]) -> Filtered:
    """Workers whose context takes prompt and output together."""
    tokens = request.prompt_tokens + request.max_tokens
    return _filtered(
        (w, f"its context of {w.context_length} tokens is shorter than {tokens}" if tokens > w.context_length else "")
        for w in workers
    )


def keep_roomy(request: PlacementRequest, workers: Iterable[Worker]) -> Filtered:
    """Workers whose whole KV pool could hold the request; a pool of no known size counts as large enough."""
    tokens = request.prompt_tokens + request.max_tokens

    def reason(worker: Worker) -> str:
        capacity = worker.num_blocks * worker.block_size
        return f"its KV cache of {capacity} tokens is smaller than {tokens}" if 0 < capacity < tokens else ""

    return _filtered((w, reason(w)) for w in workers)


FILTERS = (
    keep_model,
    keep_ready,
    keep_fingerprint,
    keep_not_excluded,
    keep_long_enough,
    keep_roomy,
    keep_circuit_closed,  # the last: it has to see who else there is
)


def _filtered(judged: Iterable[tuple[Worker, str]]) -> Filtered:
    pairs = tuple(judged)
    return Filtered(
        tuple(worker for worker, reason in pairs if not reason),
        tuple((worker.worker_id, reason) for worker, reason in pairs if reason),
    )


def _assumed(workers: Sequence[Worker]) -> list[Worker]:
    """The workers with the rates that they are taken to have: a new one would else get a burst for its promise."""
    prefill, decode = dict[str, float](), dict[str, float]()
    for each in workers:
        prefill[each.accelerator] = max(prefill.get(each.accelerator, 0.0), each.prefill_tokens_per_second)
        decode[each.accelerator] = max(decode.get(each.accelerator, 0.0), each.decode_tokens_per_second)
    return [
        replace(
            each,
            prefill_tokens_per_second=each.prefill_tokens_per_second or prefill[each.accelerator],
            decode_tokens_per_second=each.decode_tokens_per_second or decode[each.accelerator],
        )
        if not each.prefill_tokens_per_second or not each.decode_tokens_per_second
        else each
        for each in workers
    ]


def expected_wait(request: PlacementRequest, worker: Worker, policy: Policy) -> float:
    """Seconds until the first token: prompts queued before it, then its own uncached prompt, after a slot is free.

    At least one prompt token is always computed. Never falls when the worker's load grows.
    """
    rate = worker.prefill_tokens_per_second or policy.unknown_prefill_tokens_per_second
    own = max(1, request.prompt_tokens - request.cached_tokens.get(worker.worker_id, 0))
    return (worker.waiting_prefill_tokens + own) / rate + admission_wait(request, worker, policy)


def admission_wait(request: PlacementRequest, worker: Worker, policy: Policy) -> float:
    """Seconds until running sequences have ended that leave a slot and the prompt's blocks to this request.

    A full worker decodes `max_sequences` sequences side by side, each with `policy.remaining_tokens` to go: it frees
    a slot every remaining / (max_sequences x rate) seconds, and with it that share of the pool. Slots and blocks come
    back together, so the longer of the two waits counts. Both are over the worker's capacity and not over its present
    load, so that a growing load can't shorten them.
    """
    rate = worker.decode_tokens_per_second or policy.unknown_decode_tokens_per_second
    turn = policy.remaining_tokens / rate  # time in which a full worker's sequences end
    ahead = worker.running_sequences + worker.waiting_sequences + 1 - worker.max_sequences
    slots = max(0, ahead) / max(1, worker.max_sequences)
    if worker.num_blocks == 0:
        return slots * turn
    tokens = worker.waiting_prefill_tokens + request.prompt_tokens + 1
    missing = -(-tokens // worker.block_size) - worker.free_blocks
    return max(slots, max(0, missing) / worker.num_blocks) * turn


def pick(kept: Sequence[Worker], waits: dict[str, float], key: str, policy: Policy) -> Worker | None:
    """Of the workers whose wait ties with the least, the one that has the least share of its slots taken.

    Of equals the one whose rates are not known yet, else the highest hash of (key, worker id). Rendezvous hashing:
    needs no state, spreads keys evenly, and moves few of them when a worker comes or goes.
    """
    if not kept:
        return None
    least = min(waits.values())
    limit = max(least * (1 + policy.tie_ratio), least + policy.tie_seconds)
    tied = (worker for worker in kept if waits[worker.worker_id] <= limit)
    return max(
        tied, key=lambda w: (-_taken(w), not w.prefill_tokens_per_second, _weight(key, w.worker_id), w.worker_id)
    )


def _taken(worker: Worker) -> float:
    """Sequences for each slot."""
    return (worker.running_sequences + worker.waiting_sequences) / max(1, worker.max_sequences)


def _weight(key: str, worker_id: str) -> bytes:
    return blake2b(f"{key}\0{worker_id}".encode(), digest_size=8).digest()
