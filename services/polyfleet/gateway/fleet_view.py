"""The fleet as this gateway sees it: the scheduler's last snapshot, freshened by the gateway's own sessions.

A worker whose session lives stays, whatever a snapshot says: a scheduler that comes back does not know it yet.
"""

import asyncio
from dataclasses import dataclass

from polyfleet.gateway.api import Model
from polyfleet.gateway.callbacks import Listeners
from polyfleet.gateway.session import Session
from polyfleet.placement.fleet import FleetSnapshot, Worker, WorkerState
from polyfleet.v1 import fleet_pb2


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model of the fleet. `info` is what a worker said of it: None until one has loaded it."""

    model: Model
    info: fleet_pb2.ModelInfo | None


class FleetView:
    """Lives in one event loop. `changed` is called whenever a worker or model comes, goes or changes state."""

    def __init__(self, gateway_id: str, token: str | None = None) -> None:
        self.changed = Listeners()
        self.known = False  # whether any snapshot has come yet
        self.sessions: dict[str, Session] = {}
        self._gateway_id = gateway_id
        self._token = token
        self._epoch, self._version = "", 0
        self._listed: frozenset[str] = frozenset()  # workers of the last snapshot
        self._deployed: dict[str, int] = {}  # model name -> creation time
        self._infos: dict[str, fleet_pb2.ModelInfo] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.changed.add(self._prune)

    def apply(self, snapshot: fleet_pb2.FleetSnapshot) -> None:
        """Take the scheduler's picture: open sessions to new workers, forget those that are gone."""
        before = self._outline()
        self.known = True
        self._epoch, self._version = snapshot.scheduler_epoch, snapshot.version
        self._deployed = {
            each.model_name or each.name: each.created_unix_seconds for each in snapshot.deployments if each.workers
        }
        self._listed = frozenset(each.info.worker_id for each in snapshot.workers if each.info.address)
        for each in snapshot.workers:
            if each.info.address:
                self._report(each.info, each.status)
        names = self._names()
        self._infos = {name: info for name, info in self._infos.items() if name in names}
        if self._outline() != before:
            self.changed.call()

    def _outline(self) -> object:
        """What a change of counts: who serves what in which state, and which models there are. Not the load."""
        workers = [(s.worker_id, s.info.model.name, s.worker().state) for s in self.sessions.values()]
        return self.known, self._listed, self._deployed, workers, [*self._infos]

    def _report(self, info: fleet_pb2.WorkerInfo, status: fleet_pb2.WorkerStatus) -> None:
        session = self.sessions.get(info.worker_id)
        if session is None:
            session = Session(info, self._gateway_id, self._token, self.changed)
            self.sessions[info.worker_id] = session
            session.open()
        session.report(info, status)
        if info.model.name:
            self._infos[info.model.name] = info.model

    def _prune(self) -> None:
        for worker_id, session in list(self.sessions.items()):
            if worker_id not in self._listed and not session.connected:
                del self.sessions[worker_id]
                task = asyncio.create_task(session.close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """End all sessions."""
        await asyncio.gather(*(session.close() for session in self.sessions.values()), *self._closing)

    def snapshot(self) -> FleetSnapshot:
        """What to place with now."""
        workers = tuple(session.worker() for session in self.sessions.values())
        return FleetSnapshot(self._epoch, self._version, workers)

    def num_ready(self) -> int:
        """Workers that take sequences now."""
        return sum(session.worker().state is WorkerState.READY for session in self.sessions.values())

    def num_sessions(self, connected: bool) -> int:
        """Sessions that are, or are not, connected."""
        return sum(session.connected is connected for session in self.sessions.values())

    def _names(self) -> set[str]:
        return {*self._deployed, *(s.info.model.name for s in self.sessions.values())} - {""}

    def models(self) -> tuple[ModelFacts, ...]:
        """Every model that is deployed or that a worker serves, by name."""
        return tuple(self._facts(name) for name in sorted(self._names()))

    def model(self, name: str) -> ModelFacts | None:
        """The model of that name, None when the fleet has none."""
        return self._facts(name) if name in self._names() else None

    def _facts(self, name: str) -> ModelFacts:
        workers = [s.worker() for s in self.sessions.values() if s.info.model.name == name]
        ready = [worker for worker in workers if worker.state is WorkerState.READY]
        info = self._infos.get(name)
        lengths = max(map(room, ready or workers), default=0)
        return ModelFacts(
            Model(
                name=name,
                context_length=lengths or (info.context_length if info else 0),
                vocabulary_size=info.vocabulary_size if info else 0,
                ready_workers=len(ready),
                accelerators=tuple(sorted({worker.accelerator for worker in ready})),
                created_unix_seconds=self._deployed.get(name, 0),
            ),
            info,
        )

    def tokenizer_hashes(self) -> frozenset[str]:
        """Content hashes of all tokenizers in use."""
        return frozenset(info.tokenizer_hash for info in self._infos.values()) - {""}


def room(worker: Worker) -> int:
    """Tokens of one sequence, prompt and output together, that a worker has room for."""
    pool = worker.num_blocks * worker.block_size
    return min(worker.context_length, pool) if pool else worker.context_length
