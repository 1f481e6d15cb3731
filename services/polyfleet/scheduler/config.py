"""The scheduler's configuration: the `scheduler` section of the one YAML file, with its defaults. Frozen data."""

import os
from collections.abc import Mapping
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Any, Literal

import msgspec

from polyfleet.placement.fleet import Role
from polyfleet.placement.proto import role_to_proto
from polyfleet.process.config import ConfigError
from polyfleet.process.config_file import overlaid, read_config
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.wire.limits import FieldError, check_accelerator

ACCELERATORS = ("cuda", "rocm", "hygon", "ascend", "cambricon", "xpu", "mps", "cpu", "vulkan")
"""The order in which a deployment that names no accelerator prefers them; those of third parties stand behind."""

RESOURCE_PREFIX = "polyfleet-"


class LaunchConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How workers of one accelerator come to be."""

    mode: Literal["spawn", "attach"] = "spawn"
    interpreter: str = ""  # spawn: the Python that runs the worker; empty: the launcher's own
    environment: dict[str, str] = msgspec.field(default_factory=dict)  # spawn: added to the node's environment
    address: str = ""  # attach: host:port where the worker beside the launcher listens


class AutoscalingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many workers a pool has, by what they have to do: as Autoscaling in fleet.proto says."""

    min_workers: int = 1
    max_workers: int = 1
    queue_seconds: float = 0.0
    kv_use: float = 0.0
    idle_seconds: float = 0.0
    down_seconds: float = 0.0


class PoolConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Workers that others start with a model of their own: a pool of the chart."""

    model: str  # the name it is served under
    accelerator: str
    workers: int = 1  # that there should be at least
    autoscaling: AutoscalingConfig | None = None  # the scheduler sets the replicas of `kubernetes_deployment`
    kubernetes_deployment: str = ""  # in the scheduler's own namespace
    role: Literal["both", "prefill", "decode"] = "both"
    traffic_percent: int | None = None  # of the model's new requests; of all pools of the model, or of none


class SchedulerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the scheduler's section may say. Addresses are host:port, times are seconds."""

    listen: str = "127.0.0.1:50052"
    metrics_listen: str = "127.0.0.1:9102"
    advertise: str = ""  # where workers dial the scheduler; empty: `listen`
    state_dir: str = ""  # empty: default_state_dir()
    fleet_token_file: str = ""  # first line: what it shows to workers, and asks of callers where no keys are named
    fleet_keys_file: str = ""  # hashes of the keys that the fleet's parts show, by role
    worker_token_file: str = ""  # first line: what workers that it starts show; empty: as fleet_token_file
    fleet_tls_dir: str = ""  # tls.crt, tls.key and ca.crt, of role scheduler: all parts then speak TLS to each other
    worker_tls_dir: str = ""  # the same of role worker, for workers that it starts
    keys_file: str = ""  # the gateway's; operators' keys in it may deploy, undeploy and drain
    gateway: str = ""  # host:port of a gateway's gRPC API, through which benchmarks run; empty: none can
    gateway_key_file: str = ""  # first line: the caller's key that benchmarks show there
    gateway_ca_file: str = ""  # PEM roots of that gateway's certificate; empty: without TLS
    # A returning scheduler listens this long before it starts anything: workers dial it at most 5 s apart.
    settle_seconds: float = 7.0
    drain_seconds: float = 600.0  # a worker that is to go may take this long to finish what it runs
    shutdown_seconds: float = 10.0  # the same, when the whole local fleet is stopped
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    accelerators: dict[str, LaunchConfig] = msgspec.field(default_factory=dict)  # by name; absent: all defaults
    pools: dict[str, PoolConfig] = msgspec.field(default_factory=dict)  # known though none of their workers is up

    @property
    def fleet_address(self) -> str:
        """Where workers dial."""
        return self.advertise or self.listen

    @property
    def state_path(self) -> Path:
        """The folder with all state."""
        return Path(self.state_dir) if self.state_dir else default_state_dir()

    def launch_config(self, accelerator: str) -> LaunchConfig:
        """How to launch workers of this accelerator."""
        return self.accelerators.get(accelerator, LaunchConfig())


def fleet_id(state: Path) -> str:
    """Names the fleet whose state lies in this folder, as its workers do: 16 hexadecimal digits."""
    return sha256(str(state.resolve()).encode()).hexdigest()[:16]


def default_state_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """`$XDG_STATE_HOME/polyfleet`, else `~/.local/state/polyfleet`."""
    base = environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "polyfleet"


class ConfigFile(msgspec.Struct, frozen=True):
    """The whole file; the other processes' sections are theirs."""

    scheduler: SchedulerConfig = SchedulerConfig()


def load_config(path: Path | None, overrides: Mapping[str, Any]) -> SchedulerConfig:
    """The scheduler's section of `path` (None: the defaults) under `overrides`, Nones apart. Raises ConfigError."""
    config = overlaid(read_config(path, ConfigFile).scheduler if path else SchedulerConfig(), **overrides)
    check_config(config)
    return config


def check_config(config: SchedulerConfig) -> None:
    """Raise ConfigError for values that contradict each other."""
    for accelerator, launch in config.accelerators.items():
        _check_accelerator("accelerators", accelerator)
        if launch.mode == "attach" and not launch.address:
            raise ConfigError(f"accelerators.{accelerator}.address: attach needs the worker's host:port.")
    for name, pool in config.pools.items():
        _check_accelerator(f"pools.{name}.accelerator", pool.accelerator)
        if not pool.model or not 0 <= pool.workers < 2**32:
            raise ConfigError(f"pools.{name}: needs the name of a model, and 0 workers or more.")
        if pool.autoscaling:
            _check_autoscaling(f"pools.{name}", pool, pool.autoscaling)
    _check_traffic(config.pools)


def _check_traffic(pools: Mapping[str, PoolConfig]) -> None:
    shares: dict[str, list[int]] = {}
    for pool in pools.values():
        if pool.traffic_percent is not None:
            shares.setdefault(pool.model, []).append(pool.traffic_percent)
    for model, given in shares.items():
        alike = sorted(name for name, pool in pools.items() if pool.model == model)
        if len(given) < len(alike) or min(given) < 0 or sum(given) != 100:
            raise ConfigError(
                f"pools: the traffic_percent of those of model {model} ({', '.join(alike)}) must add up to 100."
            )


def _check_accelerator(key: str, name: str) -> None:
    try:
        check_accelerator(key, name)
    except FieldError as error:
        raise ConfigError(f"{error}.") from None


def _check_autoscaling(key: str, pool: PoolConfig, aims: AutoscalingConfig) -> None:
    if not pool.kubernetes_deployment:
        raise ConfigError(f"{key}.kubernetes_deployment: must name the Deployment whose replicas are set.")
    if not 0 <= aims.min_workers <= aims.max_workers or not 1 <= aims.max_workers < 2**31:
        raise ConfigError(f"{key}.autoscaling: needs 0 min_workers or more, and max_workers of at least 1 and as many.")
    for name in ("queue_seconds", "kv_use", "idle_seconds", "down_seconds"):
        if not 0 <= getattr(aims, name) < inf:
            raise ConfigError(f"{key}.autoscaling.{name}: must be 0 or more.")


def autoscaling_of(pool: PoolConfig) -> pb.Autoscaling | None:
    """What the pool's number of workers is to aim at; None: the scheduler doesn't set it."""
    return pb.Autoscaling(**msgspec.structs.asdict(pool.autoscaling)) if pool.autoscaling else None


def pool_wishes(config: SchedulerConfig) -> tuple[pb.ModelDeployment, ...]:
    """The pools as wishes, by name."""
    return tuple(
        pb.ModelDeployment(
            name=name,
            model_name=pool.model,
            accelerators=[pool.accelerator],
            workers=pool.workers,
            role=role_to_proto(Role(pool.role)),
            autoscaling=autoscaling_of(pool),
            traffic_percent=pool.traffic_percent,
        )
        for name, pool in sorted(config.pools.items())
    )
