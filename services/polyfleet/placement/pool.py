"""The fleet indexed by model, kept up to date worker by worker: what a placement looks at and nothing else."""

from collections import Counter
from collections.abc import Iterable, KeysView

from polyfleet.placement.candidate import Candidate, Pace, candidate_of, pace_of
from polyfleet.placement.fleet import Role, Worker, WorkerState
from polyfleet.placement.policy import Policy

NO_PACE = Pace(0.0, 0.0)


class Pool:
    """The ready workers of one model as candidates. Those of changed workers are prepared when next asked for."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._workers: dict[str, Worker] = {}
        self._changed: set[str] = set()
        self._unknown: set[str] = set()  # workers whose rates are others'
        self._spared: set[str] = set()  # with an open circuit
        self._roles: set[str] = set()  # of workers that are not for both prompts and decoding
        self._fingerprints: Counter[str] = Counter()
        self._places: dict[str, int] = {}  # in the list
        self._list: list[Candidate] = []

    def put(self, worker: Worker) -> None:
        """A worker came, or reported."""
        worker_id = worker.worker_id
        if (before := self._workers.get(worker_id)) is None or before.fingerprint != worker.fingerprint:
            self.drop(worker_id)
            self._fingerprints[worker.fingerprint] += 1
        self._workers[worker_id] = worker
        self._changed.add(worker_id)
        known = worker.prefill_tokens_per_second and worker.decode_tokens_per_second
        (self._unknown.discard if known else self._unknown.add)(worker_id)
        (self._spared.add if worker.circuit_open else self._spared.discard)(worker_id)
        (self._roles.discard if worker.role is Role.BOTH else self._roles.add)(worker_id)

    def drop(self, worker_id: str) -> None:
        """A worker is not ready any more."""
        if (worker := self._workers.pop(worker_id, None)) is None:
            return
        for each in (self._changed, self._unknown, self._spared, self._roles):
            each.discard(worker_id)
        self._fingerprints[worker.fingerprint] -= 1
        self._fingerprints += Counter()  # without zeros
        self._changed |= self._workers.keys()
        self._places.clear()
        self._list.clear()

    def __len__(self) -> int:
        return len(self._workers)

    def candidates(self, fingerprint: str | None) -> list[Candidate]:
        """Those with this fingerprint; None: all. Callers must not change the list."""
        self._prepare()
        found = self._list
        if fingerprint is not None and self._fingerprints.keys() != {fingerprint}:
            found = [each for each in found if each.worker.fingerprint == fingerprint]
        return found

    def candidate(self, worker_id: str) -> Candidate | None:
        """That of one worker; None: it is not ready."""
        self._prepare()
        return self._list[self._places[worker_id]] if worker_id in self._workers else None

    @property
    def fingerprints(self) -> KeysView[str]:
        """That any of them has."""
        return self._fingerprints.keys()

    @property
    def worker_ids(self) -> KeysView[str]:
        """Of all of them."""
        return self._workers.keys()

    @property
    def has_spared(self) -> bool:
        """Whether any has an open circuit."""
        return bool(self._spared)

    @property
    def has_roles(self) -> bool:
        """Whether any is for prompts or for decoding alone."""
        return bool(self._roles)

    def _prepare(self) -> None:
        if not self._changed:
            return  # nor have the rates that unknown ones borrow
        fastest, slowest = self._paces() if self._unknown else ({}, NO_PACE)
        for worker_id in self._changed | self._unknown if self._list else self._workers:
            worker = self._workers[worker_id]
            pace = pace_of(worker, fastest.get(worker.accelerator, NO_PACE), slowest, self._policy)
            candidate = candidate_of(worker, pace, self._policy)
            if (place := self._places.setdefault(worker_id, len(self._list))) == len(self._list):
                self._list.append(candidate)
            else:
                self._list[place] = candidate
        self._changed.clear()

    def _paces(self) -> tuple[dict[str, Pace], Pace]:
        """The fastest known rates of each accelerator and the slowest of all; 0 where none are known."""
        fastest: dict[str, Pace] = {}
        for each in self._workers.values():
            prefill, decode = fastest.get(each.accelerator, NO_PACE)
            prefill = max(prefill, each.prefill_tokens_per_second)
            fastest[each.accelerator] = Pace(prefill, max(decode, each.decode_tokens_per_second))
        rates = [(each.prefill_tokens_per_second, each.decode_tokens_per_second) for each in self._workers.values()]
        prefills, decodes = ([rate for rate in column if rate] for column in zip(*rates, strict=True))
        return fastest, Pace(min(prefills, default=0.0), min(decodes, default=0.0))


class FleetIndex:
    """All workers by id, and a Pool of the ready ones for each model. `put` takes a new worker or a new report."""

    def __init__(self, policy: Policy, workers: Iterable[Worker] = ()) -> None:
        self.policy = policy
        self._workers: dict[str, Worker] = {}
        self._pools: dict[str, Pool] = {}
        for worker in workers:
            self.put(worker)

    @property
    def workers(self) -> tuple[Worker, ...]:
        """All of them, ready or not, in the order in which they came."""
        return tuple(self._workers.values())

    def worker(self, worker_id: str) -> Worker | None:
        """As last put."""
        return self._workers.get(worker_id)

    def put(self, worker: Worker) -> None:
        """A worker came, or reported."""
        before = self._workers.get(worker.worker_id)
        if before is worker:
            return
        self._workers[worker.worker_id] = worker
        ready = worker.state is WorkerState.READY and not worker.nonsense
        if before is not None and not (ready and before.model == worker.model):
            self._leave(before)
        if ready:
            pool = self._pools.get(worker.model)
            if pool is None:
                pool = self._pools[worker.model] = Pool(self.policy)
            pool.put(worker)

    def drop(self, worker_id: str) -> None:
        """A worker has gone."""
        if (worker := self._workers.pop(worker_id, None)) is not None:
            self._leave(worker)

    def _leave(self, worker: Worker) -> None:
        if (pool := self._pools.get(worker.model)) is not None:
            pool.drop(worker.worker_id)
            if not len(pool):
                del self._pools[worker.model]

    def pool(self, model: str) -> Pool | None:
        """The ready workers of a model; None: there are none."""
        return self._pools.get(model)
