"""The bounded queue in front of the fleet: sequences wait here for a worker, their requests for a turn.

A request gets a turn when its first sequence is placed; at most `max_concurrent` have one at once. Those that go on
after a lost worker come first, then higher priority, then whose tenant is behind its share, then first come. Where the
queue is full, who would come last makes way. Nobody waits longer than `queue_timeout`. Where tenants share the fleet,
requests wait here rather than at a worker that has enough to begin with: there, first come is first served. Who has a
deadline that can't be kept any more is turned away at once, when its turn comes: those of less value first.
"""

import asyncio
import itertools
import logging
import time
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from polyfleet.gateway.config import Limits
from polyfleet.gateway.errors import ResourceExhausted, Unavailable
from polyfleet.gateway.fleet.prefix_sources import prefill_source, prefix_source, reaches
from polyfleet.gateway.fleet.session import Session
from polyfleet.gateway.fleet.view import FleetView
from polyfleet.gateway.metrics import Metrics
from polyfleet.gateway.request.room import Room, has_enough
from polyfleet.gateway.request.turn import Candidate, TellPlacement, Turn
from polyfleet.gateway.tenants.fairness import FairOrder
from polyfleet.placement.apart import Apart, Decision
from polyfleet.placement.explain import explained
from polyfleet.placement.fleet import PlacementRequest, Worker
from polyfleet.placement.place import Placement, late_by
from polyfleet.placement.pool import FleetIndex
from polyfleet.placement.prefixes import PrefixMap
from polyfleet.wire.requests import SequenceRequest
from polyfleet.wire.tickets import PrefixSource

RETRY_SECONDS = 1.0  # hint to callers that were turned away
MAX_HELD = 8  # of a model's requests that found no such room: then the others are not tried
log = logging.getLogger(__name__)
Order = tuple[bool, int, float, int]  # lower ones first
PlaceFunction = Callable[[PlacementRequest, FleetIndex], Placement]


@dataclass(eq=False, slots=True)
class _Waiting:
    order: Order
    candidate: Candidate
    expiry: asyncio.TimerHandle
    live: bool = True
    no_worker: bool = False  # found last time: only a change of the fleet can help


class RequestQueue:
    """Places candidates as workers and turns come free. Lives in one event loop; no call blocks."""

    def __init__(
        self, view: FleetView, place: PlaceFunction, limits: Limits, metrics: Metrics, fair: FairOrder | None = None
    ) -> None:
        self._view = view
        self._place = place
        self._limits = limits
        self._metrics = metrics
        self._fair = fair or FairOrder()
        self._waiting: list[_Waiting] = []
        self._by_model: Counter[str] = Counter()  # how many wait
        self._serial = itertools.count()
        self._num_turns = 0  # taken
        self._num_queued = 0  # requests that wait for their turn, or for their model to be known
        self._scheduled = self._fleet_changed = False
        self._held: Counter[str] = Counter()  # by model, how many found a worker that has enough, in this dispatch
        self._room = Room(view, self.fleet_changed)
        self._unlogged = 0.0  # placements to be logged, as a share of the next one
        view.changed.add(self.fleet_changed)

    def submit(self, candidate: Candidate) -> None:
        """Place it now if nobody has to go first, else let it wait. Raises ResourceExhausted when the queue is full."""
        turn = candidate.turn
        tag = 0.0 if candidate.resumed else self._fair.tag(turn.tenant, candidate.cost)
        if not self._by_model[turn.model] and self._try(candidate):
            self._fair.passed(tag)
            return
        order = (not candidate.resumed, -turn.priority, tag, next(self._serial))
        if not turn.taken and not turn.waiting:
            self._make_way(order)
            self._enter(turn.model)
        turn.waiting += 1
        self._by_model[turn.model] += 1
        expiry = asyncio.get_running_loop().call_later(self.patience(turn.model), self._expire, candidate)
        insort(self._waiting, _Waiting(order, candidate, expiry), key=lambda each: each.order)
        self._poke()

    def withdraw(self, candidate: Candidate) -> None:
        """It wants no worker any more; nothing happens when it was not waiting."""
        for waiting in self._waiting:
            if waiting.candidate is candidate:
                self._remove(waiting)
                return

    def fits(self, request: PlacementRequest) -> bool:
        """Whether a worker could take it now."""
        return self._choose(request).worker is not None

    def patience(self, model: str) -> float:
        """Seconds that a request for the model may wait, which begins to now."""
        limits = self._limits
        return max(limits.queue_timeout, limits.cold_start_timeout * self._view.is_cold(model))

    @property
    def prefixes(self) -> PrefixMap | None:
        """Who has which prompts cached, where workers are chosen by it."""
        return self._view.prefixes if self._view.policy.looks_at_prefixes else None

    def prefix_source(
        self, request: SequenceRequest, grains: Sequence[int], session: Session, apart: Apart | None = None
    ) -> PrefixSource | None:
        """Where a sequence that starts there may fetch the beginning of its prompt, which has these grains."""
        if apart and apart.worker:
            source = prefill_source(request, there := self._view.sessions[apart.worker.worker_id], apart.seconds)
            there.expect(request.sequence_id, source.tokens, grains)
            return source
        cached = self._view.prefixes.cached_tokens(grains)
        holders = [self._view.sessions[each] for each in cached if each in self._view.sessions]
        return prefix_source(request, cached, session, holders)

    def give_back(self, turn: Turn) -> None:
        """The request has ended; call once, when none of its sequences waits."""
        if turn.taken:
            turn.taken = False
            self._num_turns -= 1
            self._poke()

    @contextmanager
    def seat(self, model: str) -> Iterator[None]:
        """Count as queued inside, while the model's facts are on their way. Raises ResourceExhausted when full."""
        self._enter(model)
        try:
            yield
        finally:
            self._leave(model)

    def fleet_changed(self) -> None:
        """Look for workers again, soon."""
        self._fleet_changed = True
        self._poke()

    def _poke(self) -> None:
        if self._waiting and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        everybody, self._scheduled, self._fleet_changed = self._fleet_changed, False, False
        hopeless: dict[str, str] = {}  # by model: why
        self._held.clear()
        for waiting in list(self._waiting):
            if self._held[waiting.candidate.turn.model] >= MAX_HELD:
                continue
            if waiting.live and (everybody or not waiting.no_worker) and not self._try(waiting.candidate, waiting):
                model = waiting.candidate.turn.model
                if model not in hopeless:
                    hopeless[model] = self._view.hopeless(model)
                if reason := hopeless[model]:
                    self._remove(waiting)
                    waiting.candidate.denied(Unavailable(reason, retry_after=RETRY_SECONDS))

    def _try(self, candidate: Candidate, waiting: _Waiting | None = None) -> bool:
        turn = candidate.turn
        if not turn.taken and self._num_turns >= self._limits.max_concurrent:
            return False
        if not turn.taken and turn.fingerprint is not None:
            turn.fingerprint = self._view.successor(turn.model, turn.fingerprint, turn.tokenizer_hash)
        placement = self._choose(candidate.needs(), turn.explained)
        if not turn.taken and turn.seconds_left and (late := late_by(placement, turn.seconds_left())):
            self._shed(candidate, waiting, late)
            return True
        worker = placement.worker
        held = worker is not None and self._holds(candidate, worker)
        session = self._view.sessions.get(worker.worker_id) if worker and not held else None
        if waiting is not None:
            waiting.no_worker = session is None and not held  # its worker has room as soon as any request of it ends
        if session is None:
            return False
        if not turn.taken:
            turn.taken = True
            self._num_turns += 1
            if turn.waiting:
                self._leave(turn.model)
        if waiting is not None:
            self._remove(waiting)
            self._fair.passed(waiting.order[2])
        if turn.worker_ids[-1:] != [session.worker_id]:
            turn.worker_ids.append(session.worker_id)
        self._metrics.placed(session.worker_id, "resume" if candidate.resumed else "start")
        candidate.granted(session, self._prefill(placement.apart, session, turn))
        return True

    def _prefill(self, apart: Apart | None, session: Session, turn: Turn) -> Apart | None:
        """Where the prompt is computed of what goes there, as far as the two workers reach each other; noted."""
        if apart and apart.worker and not reaches(session, self._view.sessions.get(apart.worker.worker_id)):
            apart = Apart(Decision.NO_CHANNEL)
        if apart:
            self._metrics.prefills.labels(apart.decision.value).inc()
            turn.prefills.append(apart.told)
        return apart

    def _shed(self, candidate: Candidate, waiting: _Waiting | None, late: float) -> None:
        """Turn away who can't be in time any more, and leave its place to one who can."""
        if waiting is not None:
            self._remove(waiting)
        wait = max(RETRY_SECONDS, late)
        problem = f"Its deadline can't be kept: the first token is expected {late:.1f} s later, behind other requests."
        candidate.denied(ResourceExhausted(problem, retry_after=wait, quota="deadline"))

    def _holds(self, candidate: Candidate, worker: Worker) -> bool:
        """Whether it has to wait here, since its worker has enough and others' requests may be before it."""
        if candidate.turn.taken or not self._fair.shared or not has_enough(worker):
            return False
        self._held[candidate.turn.model] += 1
        self._room.wait_for(worker.worker_id)
        return True

    def _choose(self, request: PlacementRequest, tell: TellPlacement | None = None) -> Placement:
        before = time.perf_counter()
        placement = self._place(request, self._view.fleet())
        self._metrics.placement_time.observe(time.perf_counter() - before)
        if placement.worker and tell:
            tell(explained(placement))
        if (sampled := self._sampled()) or log.isEnabledFor(logging.DEBUG):
            fields = {"request_id": request.key, "placement": explained(placement)}
            log.log(logging.INFO if sampled else logging.DEBUG, "A worker was chosen.", extra=fields)
        return placement

    def _sampled(self) -> bool:
        """Whether this placement is one of those whose reasons are logged."""
        self._unlogged += self._view.policy.log_ratio
        if self._unlogged < 1:
            return False
        self._unlogged -= 1
        return True

    def _remove(self, waiting: _Waiting) -> None:
        self._waiting.remove(waiting)
        waiting.live = False
        waiting.expiry.cancel()
        turn = waiting.candidate.turn
        turn.waiting -= 1
        self._by_model[turn.model] -= 1
        if not turn.taken and not turn.waiting:
            self._leave(turn.model)

    def _expire(self, candidate: Candidate) -> None:
        self.withdraw(candidate)
        candidate.denied(self._nobody(candidate))

    def _nobody(self, candidate: Candidate) -> Unavailable:
        """Why nobody could serve it."""
        turn, waited = candidate.turn, f"within {self._limits.queue_timeout:g} s"
        if not turn.taken and self._num_turns >= self._limits.max_concurrent:
            return Unavailable(f"The gateway was full and no turn came {waited}.", retry_after=RETRY_SECONDS)
        placed = self._place(candidate.needs(), self._view.fleet())
        if placed.worker:
            return Unavailable(f"All workers of {turn.model} had enough to do {waited}.", retry_after=RETRY_SECONDS)
        reasons = [f"{each.worker_id}: {each.dropped}" for each in placed.verdicts if each.dropped][:8]
        found = "; ".join(reasons) or self._view.outlook(turn.model).reason.rstrip(".")
        return Unavailable(f"No worker could serve model {turn.model} {waited} ({found}).", retry_after=RETRY_SECONDS)

    def _make_way(self, order: Order) -> None:
        """Where the queue is full, turn away the request that waits for its turn behind all others, if behind this."""
        if self._num_queued < self._limits.max_queued:
            return
        last = next((each for each in reversed(self._waiting) if not each.candidate.turn.taken), None)
        if last is None or last.order < order:
            return
        turn = last.candidate.turn
        for waiting in [each for each in self._waiting if each.candidate.turn is turn]:
            self._remove(waiting)
            waiting.candidate.denied(
                ResourceExhausted(
                    f"The queue is full ({self._limits.max_queued} requests wait), and others go first.",
                    retry_after=RETRY_SECONDS,
                    quota="max_queued",
                )
            )

    def _enter(self, model: str) -> None:
        if self._num_queued >= self._limits.max_queued:
            raise ResourceExhausted(
                f"The queue is full: {self._limits.max_queued} requests wait already.",
                retry_after=RETRY_SECONDS,
                quota="max_queued",
            )
        self._num_queued += 1
        self._metrics.of(model).queued.inc()
        self._metrics.demand.enter(model)

    def _leave(self, model: str) -> None:
        self._num_queued -= 1
        self._metrics.of(model).queued.dec()
        self._metrics.demand.of(model).leave()
