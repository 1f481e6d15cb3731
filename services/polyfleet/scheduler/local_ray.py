"""A Ray of this machine alone: small, quiet, on loopback, nothing reported to anybody, gone with its process."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray

from polyfleet.scheduler.config import RESOURCE_PREFIX
from polyfleet.scheduler.ray_cluster import NAMESPACE

LONGEST_FOLDER = 24  # Ray's sockets lie below, and their paths may have 103 characters
OBJECT_STORE_BYTES = 80 * 1024 * 1024  # Ray refuses less than 75 MiB; nothing of ours lives there


@contextmanager
def local_ray(places: Mapping[str, int]) -> Iterator[str]:
    """Start Ray with room for `places` workers of each accelerator; gives the cluster's address.

    `command.LOCAL_ENVIRONMENT` must have been set before this module was imported.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    short = tempfile.gettempdir() if len(tempfile.gettempdir()) <= LONGEST_FOLDER else "/tmp"
    with tempfile.TemporaryDirectory(prefix="polyfleet-", dir=short, ignore_cleanup_errors=True) as folder:
        context = _start(places, os.path.join(folder, "ray"))  # which Ray opens to all; the folder above is closed
        try:
            yield str(context.address_info["gcs_address"])
        finally:
            ray.shutdown()


def _start(places: Mapping[str, int], folder: str) -> Any:
    return ray.init(
        address="local",
        _temp_dir=folder,
        namespace=NAMESPACE,
        num_cpus=0,  # no idle Python workers
        num_gpus=0,  # devices are the workers' business
        resources={f"{RESOURCE_PREFIX}{family}": count for family, count in places.items()},
        object_store_memory=OBJECT_STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )


@contextmanager
def joined_ray(address: str) -> Iterator[str]:
    """Connect to a Ray that runs already ("auto", or host:port); leaves it running."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    context = ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    try:
        yield str(context.address_info["gcs_address"])
    finally:
        ray.shutdown()
