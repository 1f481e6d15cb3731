"""Snapshots to whoever watches: the whole fleet at once, then after each change and as a heartbeat."""

import asyncio
from collections.abc import AsyncGenerator, Mapping

from polyfleet.scheduler.fleet.registry import Registry
from polyfleet.v1 import fleet_pb2 as pb

SHORTEST_PAUSE_SECONDS = 0.05
HEARTBEAT_SECONDS = 2.0


class Changes:
    """What one watcher has been told, as each worker's bytes."""

    def __init__(self) -> None:
        self._told: Mapping[str, bytes] | None = None

    def since_last(self, snapshot: pb.FleetSnapshot, workers: Mapping[str, bytes]) -> pb.FleetSnapshot:
        """The snapshot, whose workers are these, without what the watcher knows; whole at first."""
        before, self._told = self._told, workers
        if before is None:
            return snapshot
        changed = {worker_id for worker_id, _ in workers.items() - before.items()} if workers is not before else ()
        return pb.FleetSnapshot(
            scheduler_epoch=snapshot.scheduler_epoch,
            version=snapshot.version,
            workers=[each for each in snapshot.workers if each.info.worker_id in changed] if changed else (),
            deployments=snapshot.deployments,
            pools=snapshot.pools,
            partial=True,
            gone=before.keys() - workers.keys(),
            generation=snapshot.generation,
        )


class SnapshotFeed:
    """Streams a registry's snapshots. Nothing leaves it before `open()`: a young scheduler does not know the fleet."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._opened = asyncio.Event()
        self._version, self._workers = 0, dict[str, bytes]()  # of the last snapshot, by id
        self.watchers = 0

    def open(self) -> None:
        """The registry knows the fleet now."""
        self._opened.set()

    @property
    def is_open(self) -> bool:
        """Whether snapshots flow."""
        return self._opened.is_set()

    async def watch(self, *, partial: bool = False) -> AsyncGenerator[pb.FleetSnapshot, None]:
        """Snapshots without end: at most one every 50 ms, at least one every 2 s. `partial`: what changed, after the
        first one."""
        changes = Changes()
        self.watchers += 1
        try:
            await self._opened.wait()
            while True:
                snapshot = self._registry.snapshot()
                yield changes.since_last(snapshot, self._bytes_of(snapshot)) if partial else snapshot
                await asyncio.sleep(SHORTEST_PAUSE_SECONDS)
                await self._registry.revision.wait(snapshot.version, HEARTBEAT_SECONDS - SHORTEST_PAUSE_SECONDS)
        finally:
            self.watchers -= 1

    def _bytes_of(self, snapshot: pb.FleetSnapshot) -> Mapping[str, bytes]:
        """Its workers, worked out once for all watchers."""
        if self._version != snapshot.version:
            self._version = snapshot.version
            self._workers = {each.info.worker_id: each.SerializeToString() for each in snapshot.workers}
        return self._workers
