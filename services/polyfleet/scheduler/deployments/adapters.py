"""Adapters of deployments: which workers have to be told of them, and the calls that change the wish."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import grpc

from polyfleet.process.channels import FleetAccess
from polyfleet.scheduler.fleet.record import Record
from polyfleet.scheduler.fleet.registry import Registry
from polyfleet.scheduler.launcher.worker_client import WorkerClient
from polyfleet.scheduler.store import Store
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.wire.adapters import check_adapter
from polyfleet.wire.limits import FieldError

LOAD_SECONDS = 120.0  # for a worker to load adapters


class AdapterCallError(Exception):
    """A call that can't be carried out. The message is one sentence."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class AdapterChange:
    """A worker that has other adapters than its deployment wishes for."""

    worker_id: str
    address: str
    adapters: tuple[pb.Adapter, ...]


def adapter_changes(wishes: Iterable[pb.ModelDeployment], records: Iterable[Record]) -> list[AdapterChange]:
    """The ready workers that have to be told. One that could not load an adapter has heard of it. Pure."""
    wanted = {wish.name: wish.adapters for wish in wishes}
    changes = []
    for record in records:
        info = record.info
        if info.deployment not in wanted or not _is_ready(record):
            continue
        adapters = wanted[info.deployment]
        if _told(adapters) != _told(info.model.adapters):
            changes.append(AdapterChange(info.worker_id, info.address, tuple(adapters)))
    return changes


def _is_ready(record: Record) -> bool:
    """Whether it serves a model that it was told to load."""
    return record.shown.state == pb.WORKER_STATE_READY and not record.info.own_model


def _told(adapters: Iterable[pb.Adapter]) -> set[tuple[str, str]]:
    return {(each.name, each.source) for each in adapters}


async def tell(change: AdapterChange, access: FleetAccess) -> list[pb.Adapter]:
    """Tell a worker; what has become of each. Raises grpc.aio.AioRpcError."""
    async with WorkerClient(change.address, access) as client:
        return await client.set_adapters(change.adapters, LOAD_SECONDS)


class AdapterDesk:
    """Changes deployments' adapters for operators. `busy` are workers that are being told by it meanwhile."""

    def __init__(self, store: Store, registry: Registry, access: FleetAccess, changed: Callable[[], None]) -> None:
        self._store, self._registry, self._access, self._changed = store, registry, access, changed
        self.busy: set[str] = set()

    async def add(self, deployment: str, name: str, source: str) -> pb.Adapter:
        """Try it on one ready worker, then wish for it. Raises AdapterCallError, FieldError, StoreError."""
        adapter = pb.Adapter(name=name, source=source)
        check_adapter("adapter", adapter)
        wish = self._deployment(deployment)
        self._check_name(name)
        record = self._ready(wish)
        change = AdapterChange(record.info.worker_id, record.info.address, (*wish.adapters, adapter))
        self.busy.add(change.worker_id)
        try:
            loaded = next((each for each in await tell(change, self._access) if each.name == name), None)
        except grpc.aio.AioRpcError as error:
            text = f"Worker {change.worker_id} could not be told of the adapter: {error.details() or error.code().name}"
            raise AdapterCallError(grpc.StatusCode.UNAVAILABLE, text) from None
        finally:
            self.busy.discard(change.worker_id)
        if loaded is None or loaded.problem:
            self._changed()  # the worker is told to forget it
            raise FieldError("source", loaded.problem if loaded else "was not loaded, and the worker does not say why")
        wish = self._deployment(wish.name)  # as it is by now
        if all(each.name != name for each in wish.adapters):
            wish.adapters.append(adapter)
        self._store.put_deployment(wish)
        self._changed()
        return loaded

    def drop(self, deployment: str, name: str) -> None:
        """Wish for it no more; no `deployment`: at the only one that has it.

        Raises AdapterCallError, FieldError, StoreError.
        """
        wish = self._deployment(deployment or self._owner(name))
        kept = [each for each in wish.adapters if each.name != name]
        if len(kept) == len(wish.adapters):
            known = ", ".join(each.name for each in kept) or "none"
            text = f"Deployment {wish.name} has no adapter {name!r:.80}; it has: {known}."
            raise AdapterCallError(grpc.StatusCode.NOT_FOUND, text)
        del wish.adapters[:]
        wish.adapters.extend(kept)
        self._store.put_deployment(wish)
        self._changed()

    def _owner(self, adapter: str) -> str:
        """The deployment that alone has an adapter of this name; empty where none or several do."""
        owners = [each.name for each in self._store.deployments() if adapter in [one.name for one in each.adapters]]
        return owners[0] if len(owners) == 1 else ""

    def _deployment(self, name: str) -> pb.ModelDeployment:
        known = {each.name: each for each in self._store.deployments()}
        if not name and len(known) == 1:
            return next(iter(known.values()))
        if name not in known:
            listed = ", ".join(known) or "none"
            if not name and known:
                raise FieldError("deployment", f"must name one of several: {listed}")
            text = f"There is no deployment {name!r:.80}; there are: {listed}."
            raise AdapterCallError(grpc.StatusCode.NOT_FOUND, text)
        return known[name]

    def _check_name(self, name: str) -> None:
        for wish in self._store.deployments():
            if name in (wish.name, wish.model_name):
                raise AdapterCallError(grpc.StatusCode.ALREADY_EXISTS, f"{name} is the name of a model.")
            if any(each.name == name for each in wish.adapters):
                text = f"Deployment {wish.name} has an adapter {name}: drop it first, or choose another name."
                raise AdapterCallError(grpc.StatusCode.ALREADY_EXISTS, text)
        if any(name == record.info.model.name for record in self._registry.records):
            raise AdapterCallError(grpc.StatusCode.ALREADY_EXISTS, f"{name} is the name of a model.")

    def _ready(self, wish: pb.ModelDeployment) -> Record:
        records: Sequence[Record] = [
            each for each in self._registry.records if each.info.deployment == wish.name and _is_ready(each)
        ]
        if not records:
            text = f"Deployment {wish.name} has no ready worker that could try the adapter: come back when it has."
            raise AdapterCallError(grpc.StatusCode.UNAVAILABLE, text)
        return records[0]
