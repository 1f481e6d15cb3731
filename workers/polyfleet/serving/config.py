"""What a worker process is told: addresses, identity, model, files. Checked by the command line that builds it."""

from dataclasses import dataclass
from pathlib import Path

from polyfleet.serving.agent.config import JoinConfig
from polyfleet.serving.worker import LoadSpec
from polyfleet.v1 import fleet_pb2 as pb


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """One start of `python -m polyfleet.serving`; its `--help` explains each value."""

    worker_id: str
    listen: str
    metrics_listen: str
    transfer_listen: str  # empty: nowhere
    advertise_host: str  # empty: the listening host, or this machine's own when that is a wildcard
    fleet: str  # empty: no registration
    accelerator: str
    device: str
    place: int
    deployment: str
    lock_file: Path | None
    load: LoadSpec | None
    fleet_token_file: Path | None
    fleet_keys_file: Path | None
    fleet_tls_dir: Path | None
    drain_timeout: float
    canary_interval: float
    stall_timeout: float
    replace_after: int
    load_stall_timeout: float
    telemetry_interval: float
    log_level: str
    launched: bool = False  # by a launcher, which may stop it
    join: JoinConfig | None = None  # at a gateway, which leads to Fleet too, in place of `fleet`
    role: "pb.WorkerRole.ValueType" = pb.WORKER_ROLE_UNSPECIFIED  # of a worker without a deployment
    fleet_id: str = ""  # of the scheduler whose launcher started it; no other may have it
