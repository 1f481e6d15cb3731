"""What the scheduler last said of the fleet. The work for another snapshot follows what changed in it. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from polyfleet.v1 import fleet_pb2 as pb


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Workers by their bytes on the wire: one that says nothing new stays the same object. Nobody may change them.

    `bytes_by_id` has the keys to them; ids are the scheduler's, each once.
    """

    workers_by_bytes: Mapping[bytes, pb.FleetWorker] = field(default_factory=dict)
    deployments: tuple[pb.ModelDeployment, ...] = ()
    pools: tuple[pb.ModelDeployment, ...] = ()
    bytes_by_id: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def workers(self) -> Collection[pb.FleetWorker]:
        """All of them, in the scheduler's order."""
        return self.workers_by_bytes.values()

    @property
    def wishes(self) -> tuple[pb.ModelDeployment, ...]:
        """Pools and deployments."""
        return self.pools + self.deployments

    def followed_by(self, message: pb.FleetSnapshotParts | pb.FleetSnapshot) -> "Snapshot":
        """The next one. Raises google.protobuf.message.DecodeError where a worker can't be read."""
        if isinstance(message, pb.FleetSnapshot):
            message = pb.FleetSnapshotParts.FromString(message.SerializeToString())
        known = self.workers_by_bytes
        new = {each: known.get(each) or pb.FleetWorker.FromString(each) for each in message.workers}
        ids = dict(self.bytes_by_id) if message.partial else {}
        for worker_id in message.gone:
            ids.pop(worker_id, None)
        ids.update((worker.info.worker_id, each) for each, worker in new.items())
        workers = {each: new.get(each) or known[each] for each in ids.values()}
        return Snapshot(workers, tuple(message.deployments), tuple(message.pools), ids)

    def not_in(self, other: "Snapshot") -> list[pb.FleetWorker]:
        """Workers of which the other one says something else or nothing, by id."""
        new = self.workers_by_bytes.keys() - other.workers_by_bytes.keys()
        return sorted((self.workers_by_bytes[each] for each in new), key=lambda each: each.info.worker_id)
