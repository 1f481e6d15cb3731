"""What an outcome comes to: goodput, times, hit rate."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from polyfleet.simulator.engine import Job
from polyfleet.simulator.fleet_file import FleetFile
from polyfleet.simulator.gateways import FIRST_SECONDS, TOKEN_SECONDS
from polyfleet.simulator.simulate import Outcome
from polyfleet.simulator.trace import Trace


def first_seconds(job: Job) -> float:
    """From arrival to the first token."""
    return job.first - job.arrival.seconds


def token_seconds(job: Job) -> float:
    """Mean from token to token behind the first; 0 for an answer of one."""
    return (job.end - job.first) / max(1, job.arrival.output_tokens - 1)


def is_good(job: Job) -> bool:
    """Whether it kept the objectives."""
    return first_seconds(job) <= FIRST_SECONDS and token_seconds(job) <= TOKEN_SECONDS


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest value; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def figures(outcome: Outcome, trace: Trace) -> dict[str, Any]:
    """Goodput (requests a second that kept the objectives, and their share), times in seconds, cached prompt tokens as
    a share of those that an endless cache would have had, requests by worker."""
    jobs, seconds = outcome.jobs, max(trace.seconds, 1e-9)
    good = sum(map(is_good, jobs))
    first, token = [first_seconds(job) for job in jobs], [token_seconds(job) for job in jobs]
    possible = possible_hits(trace)
    return {
        "requests": len(trace.arrivals),
        "failed": len(outcome.failed),
        "shed": len(outcome.shed),
        "moved": sum(job.moves for job in jobs),
        "goodput_per_second": good / seconds,
        "good_ratio": good / max(1, len(trace.arrivals)),
        "first_token_seconds_p50": percentile(first, 0.5),
        "first_token_seconds_p95": percentile(first, 0.95),
        "token_seconds_p50": percentile(token, 0.5),
        "token_seconds_p95": percentile(token, 0.95),
        "completion_seconds_mean": sum(job.end - job.arrival.seconds for job in jobs) / max(1, len(jobs)),
        "prefix_hit_ratio": sum(job.cached_tokens for job in jobs) / possible if possible else None,
        "workers": dict(sorted(Counter(job.worker for job in jobs).items())),
    }


def possible_hits(trace: Trace) -> int:
    """Prompt tokens that some earlier prompt had in the same place, in whole grains."""
    seen, hits = set[int](), 0
    for arrival in trace.arrivals:
        for depth, grain in enumerate(arrival.grains):
            if grain not in seen:
                break
            hits += 64 if 64 * (depth + 1) < arrival.prompt_tokens else 63
        seen.update(arrival.grains)
    return hits


def capacity(fleet: FleetFile, trace: Trace) -> float:
    """Requests a second that the fleet can serve within the objectives: of each worker, its best batch's.

    What earlier prompts have in common with later ones is taken to be cached.
    """
    count = max(1, len(trace.arrivals))
    prompt = (sum(each.prompt_tokens for each in trace.arrivals) - possible_hits(trace)) / count
    output = sum(each.output_tokens for each in trace.arrivals) / count
    total = 0.0
    for group in fleet.groups:
        best = 0.0
        for batch in range(1, group.max_sequences + 1):
            held = round(batch * (prompt + output / 2))
            step = group.pace.step(batch, held, 0)
            if held > group.kv_tokens or step > TOKEN_SECONDS:
                break
            share = prompt / group.pace.prefill_tokens_per_second  # of a second of prefill, in which decodes wait
            rate = 1 / (share + output * step / batch)
            if step + rate * share * step <= TOKEN_SECONDS:
                best = max(best, rate)
        total += group.workers * best
    return total
