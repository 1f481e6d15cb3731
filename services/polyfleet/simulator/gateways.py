"""A simulated gateway: places by what workers told it last, and by what it has placed itself since."""

from dataclasses import replace
from math import inf

from polyfleet.placement.fleet import PlacementRequest, Worker
from polyfleet.placement.place import late_by, place
from polyfleet.placement.policy import Policy
from polyfleet.placement.pool import FleetIndex
from polyfleet.placement.prefixes import PrefixMap
from polyfleet.simulator.engine import MODEL, Job

FIRST_SECONDS, TOKEN_SECONDS = 2.0, 0.1  # objectives: of the first token, and from token to token


class SimulatedGateway:
    """One of several beside each other. Its view of a worker is as old as the last `hear`."""

    def __init__(self, name: str, policy: Policy) -> None:
        self.name = name
        self._index = FleetIndex(policy)
        self.prefixes = PrefixMap(policy.prefix_grains)
        self._reports: dict[str, Worker] = {}
        self._unreported: dict[str, list[int]] = {}  # tokens to prefill of what went there since its report
        self._num_placed = 0

    def hear(self, worker: Worker) -> None:
        """A worker's report, which counts all that was started there."""
        self._reports[worker.worker_id] = worker
        self._unreported.pop(worker.worker_id, None)
        self.prefixes.set_capacity(worker.worker_id, worker.num_blocks * worker.block_size)
        self._index.put(worker)

    def place(self, job: Job, excluded: frozenset[str], seconds_left: float = inf) -> str | None:
        """The worker for a job; None: there is none now; empty: none of which the first token would come in time.

        Notes in the job which other worker computes its prompt.
        """
        arrival, looks = job.arrival, self._index.policy.looks_at_prefixes
        request = PlacementRequest(
            *(MODEL, arrival.prompt_tokens, arrival.output_tokens),
            excluded=excluded,
            key=str(job.number),
            cached_tokens=self.prefixes.cached_tokens(arrival.grains) if looks else {},
            first_token_seconds=FIRST_SECONDS,
            token_seconds=TOKEN_SECONDS,
            serial=self._num_placed,
        )
        placement = place(request, self._index)
        worker = placement.worker
        if worker is None:
            return None
        if late_by(placement, seconds_left):
            return ""
        self._num_placed += 1
        job.prefiller = ""
        if placement.apart and placement.apart.worker:
            job.prefiller = placement.apart.worker.worker_id
            self._count(job.prefiller, arrival.prompt_tokens)
            self._count(worker.worker_id, 1)
            for each in (job.prefiller, worker.worker_id) if looks and arrival.grains else ():
                self.prefixes.learn(each, arrival.grains)
            return worker.worker_id
        cached = request.cached_tokens.get(worker.worker_id, 0)
        self._count(worker.worker_id, max(1, arrival.prompt_tokens - cached))
        if looks and arrival.grains:
            self.prefixes.learn(worker.worker_id, arrival.grains)
        return worker.worker_id

    def _count(self, worker_id: str, tokens: int) -> None:
        started = self._unreported.setdefault(worker_id, [])
        started.append(tokens)
        report = self._reports[worker_id]
        self._index.put(
            replace(
                report,
                waiting_sequences=report.waiting_sequences + len(started),
                waiting_prefill_tokens=report.waiting_prefill_tokens + sum(started),
            )
        )
