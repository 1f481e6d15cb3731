"""A local fleet on real Ray for tests: a LocalScheduler with a client, a watcher, and the pids of its actors."""

import threading
import time
from collections.abc import Callable
from typing import Any

import grpc
import psutil

from polyfleet.scheduler.cluster.local import LocalScheduler
from polyfleet.scheduler.config import SchedulerConfig
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.v1 import fleet_pb2_grpc

OWN = [("grpc.use_local_subchannel_pool", 1)]
DEADLINE_SECONDS = 240.0  # against hanging
READY = pb.WORKER_STATE_READY


class LocalFleet:
    """`with LocalFleet(config, {"cpu": 2}) as fleet:`"""

    def __init__(self, config: SchedulerConfig, places: dict[str, int]) -> None:
        self.scheduler = LocalScheduler(config, places)

    def __enter__(self) -> "LocalFleet":
        self.scheduler.start()
        self._channel = grpc.insecure_channel(self.scheduler.fleet_address, options=OWN)
        self.stub: Any = fleet_pb2_grpc.FleetStub(self._channel)
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()
        self.scheduler.shutdown()

    def snapshot(self) -> pb.FleetSnapshot:
        answer: pb.FleetSnapshot = self.stub.ListWorkers(
            pb.ListWorkersRequest(), wait_for_ready=True, timeout=DEADLINE_SECONDS
        )
        return answer

    def workers(self, deployment: str) -> list[pb.FleetWorker]:
        return [worker for worker in self.snapshot().workers if worker.info.deployment == deployment]

    def deploy(self, name: str, source: str = "fake:", workers: int = 1, family: str = "hygon") -> None:
        wish = pb.ModelDeployment(name=name, source=source, workers=workers, accelerators=[family])
        self.stub.Deploy(pb.DeployRequest(deployment=wish))

    def undeploy(self, name: str) -> None:
        """And wait until its workers have gone."""
        self.stub.Undeploy(pb.UndeployRequest(name=name))
        self.until(lambda: not self.workers(name))

    def until_ready(self, deployment: str, workers: int = 1) -> list[pb.FleetWorker]:
        """Its workers once so many there are, all of them ready."""
        self.until(
            lambda: (
                len(found := self.workers(deployment)) == workers
                and all(worker.status.state == READY for worker in found)
            )
        )
        return self.workers(deployment)

    def until(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"never came true; the fleet is:\n{self.snapshot()}"
            time.sleep(0.05)

    def actor_pids(self, name: str) -> list[int]:
        """Of the Ray actors of that class."""
        pids = []
        for process in psutil.Process(self.scheduler.pid).children(recursive=True):
            try:
                if process.cmdline()[:1] and process.cmdline()[0].startswith(f"ray::{name}"):
                    pids.append(process.pid)
            except psutil.NoSuchProcess:
                continue
        return pids


def worker_pids(worker_id: str) -> list[int]:
    """Of all processes on this machine that run as that worker."""
    pids = []
    for process in psutil.process_iter():
        try:
            if worker_id in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                pids.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return pids


class FleetWatcher:
    """Watches a fleet as a gateway does: dials again, for ever, and keeps every snapshot."""

    def __init__(self, address: str) -> None:
        self.snapshots: list[pb.FleetSnapshot] = []
        self._address = address
        self._end = threading.Event()
        self._call: Any = None
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "FleetWatcher":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._call:
            self._call.cancel()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.is_set():
            with grpc.insecure_channel(self._address, options=OWN) as channel:
                self._call = fleet_pb2_grpc.FleetStub(channel).WatchFleet(pb.WatchFleetRequest(gateway_id="g"))
                try:
                    for snapshot in self._call:
                        self.snapshots.append(snapshot)
                except grpc.RpcError:
                    self._end.wait(0.1)
