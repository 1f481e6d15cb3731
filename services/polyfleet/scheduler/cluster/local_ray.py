"""A Ray of this machine alone: small, quiet, on loopback, nothing reported to anybody, gone with its process."""

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import psutil
import ray

from polyfleet.scheduler.cluster.ray_cluster import NAMESPACE
from polyfleet.scheduler.config import RESOURCE_PREFIX
from polyfleet.scheduler.marks import RAY_FOLDER, kill_marked

POLL_SECONDS = 0.05
LOOK_SECONDS = 0.5  # between looks at Ray's processes
END_SECONDS = 2.0
PROBE_SECONDS = 5.0  # between questions to Ray
SILENCE_SECONDS = 30.0  # without an answer, Ray hangs; a node that hangs counts as dead as soon to Ray itself
OBJECT_STORE_BYTES = 80 * 1024 * 1024  # Ray refuses less than 75 MiB; nothing of ours lives there
PARTS = {"gcs_server": "control store (gcs_server)", "raylet": "node manager (raylet)"}  # it works with both or not
NEEDLESS = {"log_monitor.py", "monitor.py", "dashboard.py"}  # 150 MB to copy logs, scale clouds and report usage
T = TypeVar("T")


class RayLostError(RuntimeError):
    """This Ray works no more, or never did. The message is one sentence."""


class LocalRay:
    """Starts on entry, in `folder`, with room for `places` workers of each accelerator; leaves no process, no folder.

    A call of Ray's may block for a minute when a part of Ray has died, so all are made on one thread, which is left
    behind in the end: the caller must end its process by `os._exit`. That thread lives until then, since the kernel
    kills Ray's processes when the thread that started them ends. `command.LOCAL_ENVIRONMENT` must have been set before
    this module was imported.
    """

    def __init__(self, places: Mapping[str, int], folder: str) -> None:
        self._places, self._folder = places, folder
        self._calls = ThreadPoolExecutor(1)
        self._parts: dict[str, psutil.Process] = {}
        self._looked = float("-inf")
        self._started: Future[str] = Future()
        self._probe: Future[bool] | None = None
        self._probed = time.monotonic()

    def __enter__(self) -> "LocalRay":
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        os.environ |= {RAY_FOLDER: self._folder, "SPT_NOENV": "1"}  # whose titles don't overwrite the mark
        self._started = self._calls.submit(self._start)
        return self

    def _start(self) -> str:
        context = ray.init(
            address="local",
            _temp_dir=os.path.join(self._folder, "ray"),  # which Ray opens to all; the folder above is closed
            namespace=NAMESPACE,
            num_cpus=0,  # no idle Python workers
            num_gpus=0,  # devices are the workers' business
            resources={f"{RESOURCE_PREFIX}{accelerator}": count for accelerator, count in self._places.items()},
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
        )
        for process in psutil.Process().children():
            with contextlib.suppress(psutil.Error):  # one that has just ended
                if {os.path.basename(word) for word in process.cmdline()} & NEEDLESS:
                    process.kill()
        return str(context.address_info["gcs_address"])

    def call(self, work: Callable[[], T], told: threading.Event, seconds: float = float("inf")) -> T | None:
        """Do this once Ray is up; None when `told` to end, or the time is over, before it is done.

        Raises RayLostError when a part of Ray has ended meanwhile, and whatever `work` raises.
        """
        done, deadline = self._calls.submit(self._once_up, work), time.monotonic() + seconds
        while not done.done():
            self.check()
            if told.wait(POLL_SECONDS) or time.monotonic() > deadline:
                return None
        self.check()
        return done.result()

    def _once_up(self, work: Callable[[], T]) -> T:
        self._started.result()  # without a Ray its calls would start another one
        return work()

    @property
    def address(self) -> str:
        """host:port of its control store, once it is up."""
        return self._started.result()

    def wait(self, told: threading.Event) -> None:
        """Until told. Raises RayLostError when a part of Ray has ended or hangs."""
        while not told.wait(LOOK_SECONDS):
            self.check()
            self._ask()

    def _ask(self) -> None:
        """Ask now and then whether Ray's node lives; raise RayLostError when it does not, or no answer comes."""
        since = time.monotonic() - self._probed
        if self._probe is None:
            if since >= PROBE_SECONDS:
                self._probe, self._probed = self._calls.submit(_has_node), time.monotonic()
        elif self._probe.done():
            if self._probe.exception() or not self._probe.result():
                raise RayLostError(f"Ray's {PARTS['raylet']} does not answer.")
            self._probe = None
        elif since >= SILENCE_SECONDS:
            raise RayLostError(f"Ray's {PARTS['gcs_server']} does not answer.")

    def check(self) -> None:
        """Raise RayLostError when Ray did not start, or a part of it that was seen has ended."""
        if self._started.done() and (error := self._started.exception()):
            raise RayLostError(f"Ray did not start: {str(error).strip() or type(error).__name__}")
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        for name, process in self._parts.items():
            if not _is_alive(process):
                raise RayLostError(f"Ray's {PARTS[name]} has ended.")
        if len(self._parts) < len(PARTS):
            self._parts = {each.name(): each for each in psutil.Process().children() if each.name() in PARTS}

    def __exit__(self, *_: object) -> None:
        deadline = time.monotonic() + END_SECONDS
        kill_marked(RAY_FOLDER, self._folder)  # Ray's agents would outlive it by half a minute
        while not self._started.done() and time.monotonic() < deadline:
            kill_marked(RAY_FOLDER, self._folder)  # its start may have made one more
            time.sleep(POLL_SECONDS)
        shutil.rmtree(self._folder, ignore_errors=True)


def _has_node() -> bool:
    return any(node["Alive"] for node in ray.nodes())


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


@contextmanager
def joined_ray(address: str) -> Iterator[str]:
    """Connect to a Ray that runs already ("auto", or host:port); leaves it running."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    context = ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    try:
        yield str(context.address_info["gcs_address"])
    finally:
        ray.shutdown()
