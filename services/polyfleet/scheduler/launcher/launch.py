"""What a launcher is told and what it reports: frozen data that travels between the scheduler and its launchers."""

from dataclasses import dataclass
from enum import Enum, unique
from functools import lru_cache
from hashlib import sha256

from polyfleet.scheduler.config import LaunchConfig
from polyfleet.v1 import fleet_pb2 as fleet
from polyfleet.v1 import worker_pb2 as pb


@dataclass(frozen=True)  # without slots: pickled by name, so that a field which an older version lacks has its default
class LaunchSpec:
    """One worker to look after: who it is, what it serves, how it is launched. The launcher bears its `worker_id`."""

    worker_id: str
    accelerator: str
    load: bytes  # a serialised LoadRequest
    launch: LaunchConfig
    fleet_address: str
    state_dir: str
    node_id: str = ""
    place: int = 0  # its number among the node's workers of that accelerator, whose devices are taken in turn
    worker_host: str = "127.0.0.1"  # where a spawned worker listens
    fleet_token_file: str = ""  # of what launchers show to workers
    worker_token_file: str = ""  # of what workers show; empty: the same
    fleet_keys_file: str = ""
    fleet_tls_dir: str = ""  # of launchers
    worker_tls_dir: str = ""  # of workers; empty: none
    drain_seconds: float = 600.0  # a worker that is to go may take this long to finish what it runs
    log_level: str = "info"
    fleet_id: str = ""  # which a spawned worker tells whom it registers with

    @property
    def load_request(self) -> pb.LoadRequest:
        """The model and its options."""
        return pb.LoadRequest.FromString(self.load)

    @property
    def deployment(self) -> str:
        """Name of the deployment whose wish it fulfils."""
        return self.load_request.deployment

    @property
    def generation(self) -> str:
        """Changes when a deployment changes in a way that needs other workers."""
        return _digest(self.load)


def load_request(deployment: fleet.ModelDeployment) -> pb.LoadRequest:
    """What a worker of this deployment is to load."""
    return pb.LoadRequest(
        deployment=deployment.name,
        model_name=deployment.model_name or deployment.name,
        source=deployment.source,
        options=deployment.options,
    )


def generation_of(deployment: fleet.ModelDeployment) -> str:
    """The `generation` of the deployment's present workers."""
    return _digest(load_request(deployment).SerializeToString(deterministic=True))


@lru_cache(4096)
def _digest(load: bytes) -> str:
    return sha256(load).hexdigest()


@unique
class Phase(str, Enum):
    """Where a launcher stands with its worker."""

    WATCHING = "watching"  # the process is up or, attached, the worker has its model; its own reports say the rest
    STARTING = "starting"  # no worker yet: being started, or awaited
    FAILED = "failed"  # it ended or could not load; `reason` says why, another try follows
    LEFT = "left"  # it ended in good order and is not started again


@dataclass(frozen=True)  # as LaunchSpec
class LauncherReport:
    """A launcher's news. `revision` grows with each change within one life of the launcher."""

    spec: LaunchSpec
    phase: Phase = Phase.STARTING
    worker_id: str = ""  # attached: the id that the worker gave itself
    pid: int = 0  # of the process last started or adopted; 0: none yet, or attached
    restarts: int = 0
    reason: str = ""
    host: str = ""
    revision: int = 0
    stopping: bool = False  # told to let its worker finish and stop

    @property
    def watched_id(self) -> str:
        """The worker's id in the fleet."""
        return self.worker_id or self.spec.worker_id
