"""A Ray of this machine alone: small, quiet, on loopback, nothing reported to anybody, gone with its process."""

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager

import psutil
import ray

from polyfleet.scheduler.config import RESOURCE_PREFIX
from polyfleet.scheduler.ray_cluster import NAMESPACE

POLL_SECONDS = 0.05
END_SECONDS = 2.0
OBJECT_STORE_BYTES = 80 * 1024 * 1024  # Ray refuses less than 75 MiB; nothing of ours lives there


@contextmanager
def local_ray(places: Mapping[str, int], told: threading.Event, folder: str) -> Iterator[str | None]:
    """Start Ray in `folder` with room for `places` workers of each accelerator; gives the cluster's address.

    None when `told` to end before Ray is up. However the block ends, it leaves no process below this one and no folder.
    Ray starts on a thread: on the main one it would replace the handler of SIGTERM and could not be left.
    `command.LOCAL_ENVIRONMENT` must have been set before this module was imported.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    outcome: Future[str] = Future()
    over = threading.Event()
    own = os.path.join(folder, "ray")  # which Ray opens to all; the folder above is closed
    threading.Thread(target=_keep, args=(places, own, outcome, over), daemon=True).start()
    try:
        while not outcome.done() and not told.wait(POLL_SECONDS):
            pass
        yield outcome.result() if outcome.done() else None
    finally:
        _end(outcome)
        over.set()
        shutil.rmtree(folder, ignore_errors=True)


def _keep(places: Mapping[str, int], folder: str, outcome: "Future[str]", over: threading.Event) -> None:
    """Start Ray and wait: the kernel kills Ray's processes when the thread that started them ends."""
    try:
        context = ray.init(
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
        outcome.set_result(str(context.address_info["gcs_address"]))
        over.wait()
    except BaseException as error:
        outcome.set_exception(error)


def _end(outcome: "Future[str]") -> None:
    """Ray's agents would outlive it by half a minute, and half a Ray does not end by itself at all."""
    this = psutil.Process()
    processes = this.children(recursive=True)
    if outcome.done():
        ray.shutdown()
    deadline = time.monotonic() + END_SECONDS
    while processes or (not outcome.done() and time.monotonic() < deadline):
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=END_SECONDS)
        wait([outcome], POLL_SECONDS)  # Ray's start may have made one more
        processes = this.children(recursive=True)


@contextmanager
def joined_ray(address: str) -> Iterator[str]:
    """Connect to a Ray that runs already ("auto", or host:port); leaves it running."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    context = ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    try:
        yield str(context.address_info["gcs_address"])
    finally:
        ray.shutdown()
