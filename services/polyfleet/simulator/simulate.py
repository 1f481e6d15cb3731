"""Discrete events: arrivals, steps, reports, failures. The same fleet, trace, policy and seed give the same outcome."""

import heapq
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import NamedTuple

from polyfleet.placement.fleet import Worker
from polyfleet.placement.policy import Policy
from polyfleet.simulator.engine import Job, SimulatedEngine
from polyfleet.simulator.fleet_file import FleetFile
from polyfleet.simulator.gateways import SimulatedGateway
from polyfleet.simulator.trace import Trace

HEARTBEAT_SECONDS = 0.5  # of a worker to a gateway that has nothing there
NEWS_SECONDS = 0.1  # of a worker, until all gateways have heard what one of them began there
REPORT_SECONDS = 0.02  # at least from one step's report to the next, to gateways that have something there
RETRY_SECONDS = 0.05  # until a request that found no worker is tried again
PATIENCE_SECONDS = 30.0  # that a request waits for a worker


class Options(NamedTuple):
    """How to simulate. `exact`: workers tell their true speeds, at once, to everybody: the oracle."""

    gateways: int = 1
    shared: bool = True  # workers tell each gateway of the others' prompts
    exact: bool = False
    seed: int = 0
    deadline: float = inf  # seconds to the first token; who can't have it in time is turned away


@dataclass
class Outcome:
    """What became of a trace."""

    jobs: list[Job] = field(default_factory=list)
    failed: list[Job] = field(default_factory=list)  # found no worker in time
    shed: list[Job] = field(default_factory=list)  # could not be in time
    busy: dict[str, float] = field(default_factory=dict)  # by worker: seconds of steps
    gaps: Counter[int] = field(default_factory=Counter)  # as SimulatedEngine's, of all workers

    @property
    def ended(self) -> int:
        """How many requests have."""
        return len(self.jobs) + len(self.failed) + len(self.shed)


class Simulation:
    """One run of a trace over a fleet. `run` may be called once."""

    def __init__(self, fleet: FleetFile, trace: Trace, policy: Policy, options: Options) -> None:
        self._options = options
        self._trace = trace
        self._engines: dict[str, SimulatedEngine] = {}
        self._gateways = [SimulatedGateway(f"gw-{n}", policy) for n in range(options.gateways)]
        self._owner: dict[int, SimulatedGateway] = {}  # by job
        self._stepping: dict[str, int] = {}  # worker -> number of its step under way
        self._down: set[str] = set()
        self._errands: dict[Job, tuple[Job, float]] = {}  # prompts computed for other workers: of which job, since when
        self._news = {each.name: dict[str, list[Job]]() for each in self._gateways}  # others' prompts, not told yet
        self._resting: dict[str, float] = {}  # workers of which nothing more is to be told, and their last heartbeat
        self._telling: set[str] = set()  # workers of which all are to hear soon
        self._reported: dict[str, float] = {}  # when it last told of a step
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._serial, self._steps = itertools.count(), itertools.count()
        self.outcome = Outcome()
        self._make(fleet)

    def _make(self, fleet: FleetFile) -> None:
        for worker_id, group, place in fleet.each_worker():
            engine = SimulatedEngine(worker_id, group, self._options.seed * 1009 + len(self._engines))
            self._engines[worker_id] = engine
            self._hear_of(engine)
            self._resting[worker_id] = len(self._engines) / 64 % HEARTBEAT_SECONDS - HEARTBEAT_SECONDS
            for failure in group.failures:
                if failure.worker == place:
                    self._at(failure.at, partial(self._fail, engine))
                    self._at(failure.end, partial(self._come_back, engine, place))

    def _at(self, when: float, what: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (when, next(self._serial), what))

    def run(self, progress: Callable[[int], None] = lambda done: None) -> Outcome:
        """To the end of the last job; `progress` is told how many have ended."""
        total = len(self._trace.arrivals)
        for number, arrival in enumerate(self._trace.arrivals):
            job = Job(arrival, number)
            self._owner[number] = self._gateways[number % len(self._gateways)]
            self._at(arrival.seconds, lambda now, job=job: self._place(job, now, now + PATIENCE_SECONDS))  # type: ignore[misc]
        while self._events and self.outcome.ended < total:
            now, _, what = heapq.heappop(self._events)
            what(now)
            progress(self.outcome.ended)
        self.outcome.gaps = sum((each.gaps for each in self._engines.values()), Counter())
        self.outcome.busy = {each.worker_id: each.seconds for each in self._engines.values()}
        return self.outcome

    def _place(self, job: Job, now: float, until: float, excluded: frozenset[str] = frozenset()) -> None:
        gateway = self._owner[job.number]
        if self._options.exact:
            for engine in self._engines.values():
                gateway.hear(self._report(engine))
        worker_id = gateway.place(job, excluded, job.arrival.seconds + self._options.deadline - now)
        if worker_id is None and now < until:
            self._at(now + RETRY_SECONDS, lambda later: self._place(job, later, until))
        elif worker_id is None:
            self.outcome.failed.append(job)
        elif not worker_id:
            self.outcome.shed.append(job)
        elif worker_id in self._down:  # the gateway has not heard yet: its start is refused
            job.moves += 1
            self._place(job, now, until, excluded | {worker_id})
        else:
            engine = self._engines[worker_id]
            if job.prefiller and job.prefiller not in self._down:
                self._send_errand(job, worker_id, now)
                return
            engine.add(job)
            for other in self._gateways if self._options.shared and job.arrival.grains else ():
                if other is not gateway:
                    self._news[other.name].setdefault(worker_id, []).append(job)
            self._wake(engine, now)
            self._tell_soon(engine, now)
            self._go_on(engine, now)

    def _send_errand(self, job: Job, worker_id: str, now: float) -> None:
        """Have another worker compute its prompt."""
        job.worker, engine = worker_id, self._engines[job.prefiller]
        errand = Job(replace(job.arrival, output_tokens=1), job.number)
        self._errands[errand] = job, now
        engine.add(errand)
        self._wake(engine, now)
        self._go_on(engine, now)

    def _errands_done(self, ended: list[Job], now: float) -> list[Job]:
        """Those of a worker's jobs that were its own; prompts of the others set out, or have by now."""
        for errand in [each for each in ended if each in self._errands]:
            job, began = self._errands.pop(errand)
            group = self._engines[job.worker].group
            last = min(group.step_tokens, errand.arrival.prompt_tokens) / group.fetch_tokens_per_second
            whole = errand.arrival.prompt_tokens / group.fetch_tokens_per_second
            arrives = max(now + last, began + whole)
            self._at(arrives, lambda later, job=job: self._arrive(job, later, computed=True))  # type: ignore[misc]
            ended = [each for each in ended if each is not errand]
        return ended

    def _arrive(self, job: Job, now: float, *, computed: bool) -> None:
        """A job's worker has its prompt, or has to compute it after all."""
        engine = self._engines[job.worker]
        if job.worker in self._down:
            job.moves += 1
            self._place(job, now, now + PATIENCE_SECONDS)
            return
        (engine.take_in if computed else engine.add)(job)
        self._wake(engine, now)
        self._go_on(engine, now)

    def _go_on(self, engine: SimulatedEngine, now: float) -> None:
        if engine.has_work and engine.worker_id not in self._stepping and engine.worker_id not in self._down:
            step = self._stepping[engine.worker_id] = next(self._steps)
            self._at(now + engine.begin_step(), lambda end: self._end_step(engine, step, end))

    def _end_step(self, engine: SimulatedEngine, step: int, now: float) -> None:
        if self._stepping.get(engine.worker_id) != step:
            return  # it failed meanwhile
        del self._stepping[engine.worker_id]
        finished = self._errands_done(engine.end_step(now), now)
        self.outcome.jobs += finished
        self._go_on(engine, now)
        if not self._options.exact and now - self._reported.get(engine.worker_id, -1.0) >= REPORT_SECONDS:
            self._reported[engine.worker_id] = now
            report = self._report(engine)
            for gateway in {self._owner[job.number] for job in (*finished, *engine.jobs)}:
                self._tell(gateway, report)

    def _tell(self, gateway: SimulatedGateway, report: Worker) -> None:
        """A worker's message: its load, and the prompts that other gateways began there."""
        gateway.hear(report)
        for job in self._news[gateway.name].pop(report.worker_id, ()):
            gateway.prefixes.learn(report.worker_id, job.arrival.grains)

    def _beat(self, engine: SimulatedEngine, now: float) -> None:
        self._hear_of(engine)
        if engine.has_work:
            self._at(now + HEARTBEAT_SECONDS, partial(self._beat, engine))
        else:
            self._resting[engine.worker_id] = now

    def _wake(self, engine: SimulatedEngine, now: float) -> None:
        """There will be something to tell with its next heartbeat."""
        if (last := self._resting.pop(engine.worker_id, None)) is not None:
            beats = 1 + (now - last) // HEARTBEAT_SECONDS
            self._at(last + beats * HEARTBEAT_SECONDS, partial(self._beat, engine))

    def _tell_soon(self, engine: SimulatedEngine, now: float) -> None:
        if len(self._gateways) > 1 and engine.worker_id not in self._telling:
            self._telling.add(engine.worker_id)
            self._at(now + NEWS_SECONDS, lambda later: self._hear_of(engine))

    def _hear_of(self, engine: SimulatedEngine) -> None:
        """Every gateway hears of the worker."""
        self._telling.discard(engine.worker_id)
        report = self._report(engine)
        for gateway in self._gateways:
            self._tell(gateway, report)

    def _report(self, engine: SimulatedEngine) -> Worker:
        return engine.report(exact=self._options.exact, lost=engine.worker_id in self._down)

    def _fail(self, engine: SimulatedEngine, now: float) -> None:
        """Its jobs go elsewhere; it comes back with nothing cached."""
        self._down.add(engine.worker_id)
        self._stepping.pop(engine.worker_id, None)
        for gateway in self._gateways:
            gateway.hear(self._report(engine))
            gateway.prefixes.forget(engine.worker_id)
        for job in engine.clear():
            if job in self._errands:
                self._arrive(self._errands.pop(job)[0], now, computed=False)
                continue
            job.moves += 1
            self._place(job, now, now + PATIENCE_SECONDS)

    def _come_back(self, engine: SimulatedEngine, place: int, now: float) -> None:
        if engine.group.is_up(place, now):
            self._down.discard(engine.worker_id)
            self._wake(engine, now)
