"""The fleet as this gateway sees it: the scheduler's last snapshot, freshened by the gateway's own sessions.

A worker whose session lives stays, whatever a snapshot says: a scheduler that comes back does not know it yet.

Workers of one model name may differ in weights or tokenizer, while a deployment rolls over to another revision say.
New requests are for the fingerprint that most ready workers have, or shared out among a deployment's revisions
(`traffic.py`); what workers say that are not ready counts for nothing.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from polyfleet.gateway.fleet.adapters import ServedAdapter, adapters_of, by_served_name
from polyfleet.gateway.fleet.changes import Mixtures, outline, standing
from polyfleet.gateway.fleet.dialling import Dial
from polyfleet.gateway.fleet.outlook import Outlook, intended_models, outlook, served_name
from polyfleet.gateway.fleet.session import Session
from polyfleet.gateway.fleet.snapshot import Snapshot
from polyfleet.gateway.fleet.traffic import Target, choose, targets_of
from polyfleet.gateway.listeners import Listeners
from polyfleet.gateway.metrics import Metrics
from polyfleet.placement.filters import prevailing_fingerprint, room
from polyfleet.placement.fleet import FleetSnapshot, Revision, WorkerState
from polyfleet.placement.policy import Policy
from polyfleet.placement.pool import FleetIndex
from polyfleet.placement.prefixes import PrefixMap
from polyfleet.process.tasks import Tasks
from polyfleet.v1 import fleet_pb2
from polyfleet.wire.answers import Model

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model of the fleet. `info` is what the workers said of it that serve it: None until one was ready."""

    model: Model
    info: fleet_pb2.ModelInfo | None


class FleetView:
    """Lives in one event loop. `changed` is called whenever a worker or model comes, goes or changes state."""

    def __init__(
        self,
        gateway_id: str,
        dial: Dial,
        metrics: Metrics | None = None,
        policy: Policy | None = None,
    ) -> None:
        self.changed = Listeners()
        self.known = False  # whether any snapshot has come yet
        self.sessions: dict[str, Session] = {}
        self._index = FleetIndex(policy or Policy())
        self.prefixes = PrefixMap(self._index.policy.prefix_grains)
        self._touched: set[Session] = set()  # whose workers the index has to be told of
        self._gateway_id = gateway_id
        self._dial = dial
        self._metrics = metrics or Metrics()
        self._epoch, self._generation, self._version = "", 0, 0
        self._heard = Snapshot()  # the last one
        self._resting: frozenset[str] = frozenset()  # models whose deployments want no worker now
        self._sleepers: frozenset[str] = frozenset()  # models that may have no worker until somebody asks for them
        self._listed: set[str] = set()  # workers of the last snapshot
        self._deployed: dict[str, int] = {}  # model name -> creation time
        self._names: frozenset[str] = frozenset()  # models that are deployed, or that a worker has or is to have
        self._moved = False  # whether the index heard of more than loads since models were last looked through
        self._facts: dict[str, ModelFacts] = {}  # those of models with ready workers that were asked for since then
        self._infos: dict[str, fleet_pb2.ModelInfo] = {}  # model name -> what prevails, or did when last one was ready
        self._targets: dict[str, tuple[Target, ...]] = {}  # of models with several revisions at work
        self._facts_of_prints: dict[tuple[str, str], ModelFacts] = {}  # those of their fingerprints, by model
        self._mixtures = Mixtures()
        self.adapters: tuple[ServedAdapter, ...] = ()  # of all models
        self.adapter_names: Mapping[str, ServedAdapter] = {}  # by every name that requests may call them
        self._closing = Tasks()
        self.changed.add(self._prune)

    def apply(self, message: fleet_pb2.FleetSnapshotParts | fleet_pb2.FleetSnapshot) -> None:
        """Take the scheduler's picture: open sessions to new workers, forget those that are gone.

        A snapshot in which one worker's load changed costs what that worker does, and little for each of the others.
        """
        before, heard = self._heard, self._heard.followed_by(message)
        gone, came = before.not_in(heard), heard.not_in(before)
        for each in came:
            if each.info.address:
                self._report(each.info, each.status)
        self._listed.difference_update(each.info.worker_id for each in gone)
        self._listed.update(each.info.worker_id for each in came if each.info.address)
        was_known, self.known, self._heard = self.known, True, heard
        self._epoch, self._generation, self._version = message.scheduler_epoch, message.generation, message.version
        self.fleet()
        if self._moved or not was_known or before.wishes != heard.wishes or outline(gone) != outline(came):
            self.changed.call()

    def offer(self, snapshot: fleet_pb2.FleetSnapshot) -> bool:
        """Take another gateway's picture where it is later than this one's; whether it was."""
        later = (snapshot.generation, snapshot.version) > (self._generation, self._version)
        if later or not self.known:
            self.apply(snapshot)
        return later

    def told(self) -> fleet_pb2.FleetSnapshot | None:
        """What the scheduler said last, be it through another gateway; None before it did."""
        heard, named = self._heard, {"scheduler_epoch": self._epoch, "generation": self._generation}
        wishes = {"deployments": heard.deployments, "pools": heard.pools}
        whole = fleet_pb2.FleetSnapshot(version=self._version, workers=heard.workers, **named, **wishes)  # type: ignore[arg-type]
        return whole if self.known else None

    def _report(self, info: fleet_pb2.WorkerInfo, status: fleet_pb2.WorkerStatus) -> None:
        session = self.sessions.get(info.worker_id)
        if session is None:
            known = self._gateway_id, self._dial, self.changed, self._metrics, self.prefixes, self._touched
            session = Session(info, *known)
            self.sessions[info.worker_id] = session
            session.open()
        session.report(info, status)

    def _learn(self) -> None:
        """Take what the ready workers of each model say of it; forget models that are gone."""
        self.fleet()
        self._moved = False
        self._facts.clear()
        self._targets.clear()
        self._facts_of_prints.clear()
        wishes = self._heard.wishes
        wakes = [each for each in wishes if each.workers or each.HasField("autoscaling")]
        self._deployed = {served_name(each): each.created_unix_seconds for each in wakes}
        self._resting = frozenset(served_name(each) for each in wishes if not each.workers)
        asleep = (each for each in wishes if each.HasField("autoscaling") and not each.autoscaling.min_workers)
        self._sleepers = frozenset(map(served_name, asleep))
        loaded = (session.info.model.name for session in self.sessions.values())
        self._names = frozenset({*self._deployed, *intended_models(self._heard), *loaded} - {""})
        self._infos = {name: info for name, info in self._infos.items() if name in self._names}
        adapters = list[ServedAdapter]()
        for name in sorted(self._names):
            ready = self._ready(name)
            fingerprint = prevailing_fingerprint(session.worker() for session in ready)
            for session in ready:
                if session.info.model.fingerprint == fingerprint:
                    self._infos[name] = session.info.model
                    break
            if targets := targets_of(name, wishes, [session.worker() for session in ready]):
                self._targets[name] = targets
                found = {session.info.model.fingerprint: session.info.model for session in reversed(ready)}
                self._facts_of_prints |= {(name, it): self._work_out(name, found[it]) for _, it, _ in targets}
            else:
                self._mixtures.look(name, ready, self._infos)
            infos = [session.info.model for session in ready if session.info.model.fingerprint == fingerprint]
            adapters += adapters_of(name, infos, [each for each in wishes if served_name(each) == name])
        self.adapters = tuple(adapters)
        self.adapter_names = by_served_name(adapters, self._names | self._resting)

    def _ready(self, name: str) -> list[Session]:
        """Sessions with the ready workers of a model, by id; those that can't be reached where there are no others."""
        if pool := self.fleet().pool(name):
            return [self.sessions[each] for each in sorted(pool.worker_ids)]
        sessions = [
            self.sessions[each] for each in sorted(self.sessions) if self.sessions[each].info.model.name == name
        ]
        reached = [session for session in sessions if session.worker().state is WorkerState.READY]
        return reached or [session for session in sessions if session.says_ready]

    def successor(self, name: str, fingerprint: str, tokenizer_hash: str) -> str:
        """The fingerprint for a request that has not begun, whose own was `fingerprint`.

        That one while a worker of it is ready, else the one that prevails among those with the request's tokenizer.
        """
        if (pool := self.fleet().pool(name)) and fingerprint in pool.fingerprints:
            return fingerprint
        ready = [session.worker() for session in self._ready(name)]
        if any(worker.fingerprint == fingerprint for worker in ready):
            return fingerprint
        alike = prevailing_fingerprint(worker for worker in ready if worker.tokenizer_hash == tokenizer_hash)
        return fingerprint if alike is None else alike

    def _prune(self) -> None:
        for worker_id, session in list(self.sessions.items()):
            if worker_id not in self._listed and not session.connected:
                del self.sessions[worker_id]
                self._index.drop(worker_id)
                self._touched.discard(session)
                self.prefixes.forget(worker_id)
                self._closing.start(session.close())
        self._learn()

    async def close(self) -> None:
        """End all sessions."""
        await asyncio.gather(*(session.close() for session in self.sessions.values()), self._closing.wait())

    @property
    def policy(self) -> Policy:
        """By which workers are chosen."""
        return self._index.policy

    def snapshot(self) -> FleetSnapshot:
        """The fleet now."""
        return FleetSnapshot(self._epoch, self._version, self.fleet().workers)

    def fleet(self) -> FleetIndex:
        """What to place with now; it is freshened by each call."""
        for session in tuple(self._touched):
            if not session.breaker.open:  # else time alone can change it
                self._touched.discard(session)
            worker = session.worker()
            before = self._index.worker(worker.worker_id)
            self._index.put(worker)
            self._moved = self._moved or before is None or standing(before) != standing(worker)
            if worker.nonsense and not (before and before.nonsense):
                fields = {"worker_id": worker.worker_id, "reason": worker.nonsense}
                log.warning("A worker reports nonsense; it gets no requests.", extra=fields)
        return self._index

    def num_ready(self) -> int:
        """Workers that take sequences now."""
        return sum(session.worker().state is WorkerState.READY for session in self.sessions.values())

    def num_sessions(self, connected: bool) -> int:
        """Sessions that are, or are not, connected."""
        return sum(session.connected is connected for session in self.sessions.values())

    def models(self) -> tuple[ModelFacts, ...]:
        """Every model that is deployed or that a worker serves, by name."""
        return tuple(self._facts_of(name) for name in sorted(self._names))

    def model(self, name: str) -> ModelFacts | None:
        """The model of that name, None when the fleet has none."""
        return self._facts_of(name) if name in self._names or name in self._resting else None

    def chosen(self, facts: ModelFacts, key: str) -> tuple[ModelFacts, Revision | None]:
        """What a request with this key is for: where several revisions of its model serve, one of them."""
        name = facts.model.name
        if (targets := self._targets.get(name)) is None:
            return facts, None
        target = choose(targets, f"{name}/{key}")
        return self._facts_of_prints[name, target.fingerprint], target.revision

    def is_cold(self, name: str) -> bool:
        """Whether a model has no ready worker, and somebody who asks for it makes one start."""
        return name in self._sleepers and not self._ready(name)

    def outlook(self, name: str) -> Outlook:
        """Why a model of the fleet has no ready worker, and whether waiting may help."""
        return outlook(name, self._heard)

    def hopeless(self, name: str) -> str:
        """Why a model has no ready worker, where a wait won't change it; else empty."""
        found = None if self._ready(name) else self.outlook(name)
        return found.reason if found and found.hopeless else ""

    def reason(self) -> str:
        """Why no worker is ready: a sentence for each model; empty while there is none."""
        return " ".join(self.outlook(name).reason for name in sorted(self._names))

    def _facts_of(self, name: str) -> ModelFacts:
        """Worked out once, until a worker is more or less than it was; as long as none is ready, each time."""
        self.fleet()
        if self._moved or name not in self._facts:
            facts = self._work_out(name, self._infos.get(name))
            if self._moved or not facts.model.ready_workers:  # its reason tells how far a worker has loaded
                return facts
            self._facts[name] = facts
        return self._facts[name]

    def _work_out(self, name: str, info: fleet_pb2.ModelInfo | None) -> ModelFacts:
        workers = [each.worker() for each in self._ready(name)]
        workers = [each for each in workers if info and each.fingerprint == info.fingerprint]
        ready = [worker for worker in workers if worker.state is WorkerState.READY]
        lengths = max(map(room, workers), default=0)
        return ModelFacts(
            Model(
                name=name,
                context_length=lengths or (info.context_length if info else 0),
                vocabulary_size=info.vocabulary_size if info else 0,
                embeds_only=bool(info and info.embeds_only),
                cross_encoder=bool(info and info.cross_encoder),
                ids_only=bool(info and not info.tokenizer_hash),
                ready_workers=len(ready),
                accelerators=tuple(sorted({worker.accelerator for worker in ready})),
                created_unix_seconds=self._deployed.get(name, 0),
                reason="" if ready else self.outlook(name).reason,
            ),
            info,
        )

    def revisions(self) -> set[Revision]:
        """That any worker is of."""
        return {worker.revision for worker in self.fleet().workers if worker.revision}

    def tokenizer_hashes(self) -> frozenset[str]:
        """Content hashes of all tokenizers in use."""
        infos = [*self._infos.values(), *(facts.info for facts in self._facts_of_prints.values())]
        return frozenset(info.tokenizer_hash for info in infos if info) - {""}
