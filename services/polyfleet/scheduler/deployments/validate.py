"""What a deployment, and a worker's word about itself, may look like. Pure."""

import re

from polyfleet.process.listening import MAX_PORT, is_address
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.wire.adapters import MOST_LISTED, check_adapters
from polyfleet.wire.auth import is_loopback, split_host_port
from polyfleet.wire.limits import REQUEST_ID, FieldError, check_accelerator, check_count
from polyfleet.wire.options import options_in

MAX_WORKERS = 1000
MAX_INFO_BYTES = MAX_STATUS_BYTES = 16 * 1024  # of a worker's messages; one takes less than 1 KiB
MAX_ADAPTER_BYTES = 8 * 1024  # of each adapter in them
MAX_MODEL_NAME = 256
MAX_SECONDS = 86_400.0
_NAME = re.compile(r"[a-z0-9-]{1,63}")
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.%]{2,64}")
_HASH = re.compile(r"[0-9a-f]{64}|")


def check_deployment(deployment: pb.ModelDeployment) -> None:
    """Raise FieldError for the first field that the scheduler does not accept."""
    if not _NAME.fullmatch(deployment.name):
        raise FieldError("deployment.name", f"must be 1 to 63 of a-z, 0-9 and -, not {deployment.name!r:.80}")
    if len(deployment.model_name) > MAX_MODEL_NAME or not deployment.model_name.isprintable():
        raise FieldError("deployment.model_name", f"must be at most {MAX_MODEL_NAME} printable characters")
    if not deployment.source.strip():
        raise FieldError("deployment.source", "must name a GGUF file, a Hugging Face folder, or owner/name on the hub")
    for accelerator in deployment.accelerators:
        check_accelerator("deployment.accelerators", accelerator)
    if deployment.workers > MAX_WORKERS:
        raise FieldError("deployment.workers", f"must be at most {MAX_WORKERS}, not {deployment.workers}")
    if deployment.role not in pb.WorkerRole.values():
        raise FieldError("deployment.role", "must be one that this version knows: both, prefill or decode")
    check_adapters(deployment.adapters, "deployment.adapters")
    _check_rollout(deployment.rollout)
    if deployment.HasField("autoscaling"):
        _check_autoscaling(deployment.autoscaling)
    try:
        options_in(deployment.options)
    except FieldError as error:
        raise error.on(f"deployment.options.{error.field}") from None


def _check_rollout(rollout: pb.Rollout) -> None:
    field = "deployment.rollout"
    if rollout.max_surge > MAX_WORKERS:
        raise FieldError(f"{field}.max_surge", f"must be at most {MAX_WORKERS}, not {rollout.max_surge}")
    _check_between(f"{field}.progress_seconds", rollout.progress_seconds, 0, MAX_SECONDS)
    _check_between(f"{field}.max_error_ratio", rollout.max_error_ratio, 0, 1)


def _check_autoscaling(aims: pb.Autoscaling) -> None:
    field = "deployment.autoscaling"
    if not 1 <= aims.max_workers <= MAX_WORKERS:
        raise FieldError(f"{field}.max_workers", f"must be from 1 to {MAX_WORKERS}, not {aims.max_workers}")
    if aims.min_workers > aims.max_workers:
        raise FieldError(
            f"{field}.min_workers", f"must be at most max_workers {aims.max_workers}, not {aims.min_workers}"
        )
    for name in ("queue_seconds", "idle_seconds", "down_seconds"):
        _check_between(f"{field}.{name}", getattr(aims, name), 0, MAX_SECONDS)
    _check_between(f"{field}.kv_use", aims.kv_use, 0, 1)


def _check_between(field: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:  # nor NaN
        raise FieldError(field, f"must be from {least:g} to {most:g}, not {value:g}")


def check_info(info: pb.WorkerInfo, *, loopback: bool) -> None:
    """Raise FieldError for what no worker says of itself; `loopback`: only this machine's workers may register."""
    if not REQUEST_ID.fullmatch(info.worker_id):
        raise FieldError("info.worker_id", "must be 1 to 128 of A-Z, a-z, 0-9, '.', '_', ':' and '-'")
    adapters = info.model.adapters
    check_count("info.model.adapters", len(adapters), MOST_LISTED)
    most = MAX_INFO_BYTES + len(adapters) * MAX_ADAPTER_BYTES
    if (size := info.ByteSize()) > most:
        raise FieldError("info", f"must be at most {most} bytes, not {size}")
    for field, address in (("address", info.address), ("metrics_address", info.metrics_address)):
        if address and not (_HOST.fullmatch(split_host_port(address)[0]) and is_address(address, lowest_port=1)):
            raise FieldError(
                f"info.{field}", f"must be host:port with a port from 1 to {MAX_PORT}, not {address!r:.80}"
            )
        if address and loopback and not is_loopback(address):
            raise FieldError(
                f"info.{field}", f"must be on loopback where no fleet token is configured, not {address:.80}"
            )
    texts = (
        info.fleet_id,
        info.deployment,
        info.accelerator,
        info.device_name,
        info.host,
        info.version,
        info.process,
        info.model.name,
    )
    if not all(text.isprintable() for text in texts):
        raise FieldError("info", "must have printable names only")
    if not _HASH.fullmatch(info.model.tokenizer_hash):
        raise FieldError("info.model.tokenizer_hash", "must be a sha256 in 64 hexadecimal digits")


def check_status(status: pb.WorkerStatus) -> None:
    """Raise FieldError for a status that no worker sends."""
    if (size := status.ByteSize()) > MAX_STATUS_BYTES:
        raise FieldError("status", f"must be at most {MAX_STATUS_BYTES} bytes, not {size}")
