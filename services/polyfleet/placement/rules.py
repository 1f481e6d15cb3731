"""The simpler rules that others place by: to compare with, and for whoever trusts no rates."""

from collections.abc import Callable, Mapping

from polyfleet.placement.candidate import Candidate, share_of
from polyfleet.placement.fleet import PlacementRequest, Worker

Rule = Callable[[PlacementRequest, list[Candidate]], Candidate]
PREFIX_WEIGHT, QUEUE_WEIGHT = 3.0, 2.0


def round_robin(request: PlacementRequest, kept: list[Candidate]) -> Candidate:
    """One after the other, by the number of the request."""
    return kept[request.serial % len(kept)]


def random(request: PlacementRequest, kept: list[Candidate]) -> Candidate:
    """Any, by the request's key."""
    return min(kept, key=_chance(request))


def least_requests(request: PlacementRequest, kept: list[Candidate]) -> Candidate:
    """The one with the fewest sequences; of equals any."""
    chance = _chance(request)
    return min(kept, key=lambda each: (requests_at(each.worker), chance(each)))


def power_of_two(request: PlacementRequest, kept: list[Candidate]) -> Candidate:
    """Of any two the one with fewer sequences."""
    two = sorted(kept, key=_chance(request))[:2]
    return min(two, key=lambda each: requests_at(each.worker))


def prefix_queue(request: PlacementRequest, kept: list[Candidate]) -> Candidate:
    """The one with the most of the prompt cached and the shortest queue, both as shares: what routers for equal workers
    do, whose queue is of those that wait, not of those that run."""
    queues = [each.worker.waiting_sequences for each in kept]
    least, span = min(queues), max(1, max(queues) - min(queues))
    chance, prompt = _chance(request), max(1, request.prompt_tokens)

    def worth(each: Candidate) -> tuple[float, float]:
        cached = request.cached_tokens.get(each.worker.worker_id, 0) / prompt
        idle = 1 - (each.worker.waiting_sequences - least) / span
        return PREFIX_WEIGHT * cached + QUEUE_WEIGHT * idle, chance(each)

    return max(kept, key=worth)


def requests_at(worker: Worker) -> int:
    """Sequences that run or wait there."""
    return worker.running_sequences + worker.waiting_sequences


def _chance(request: PlacementRequest) -> Callable[[Candidate], float]:
    mix = 1 + share_of(request.key)
    return lambda each: mix * each.salt % 1.0


RULES: Mapping[str, Rule] = {
    "round-robin": round_robin,
    "random": random,
    "least-requests": least_requests,
    "power-of-two": power_of_two,
    "prefix-queue": prefix_queue,
}
