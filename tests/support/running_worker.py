"""The real worker process with the fake engine, for tests: started, watched by its lock file, ended by pid."""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import grpc
import psutil
from tests.support.session_client import OWN_CONNECTION, SessionClient

from polyfleet.process.worker_lock import WorkerLock, read_lock
from polyfleet.v1 import fleet_pb2 as fleet
from polyfleet.v1 import worker_pb2 as pb
from polyfleet.v1 import worker_pb2_grpc

ROOT = Path(__file__).parents[2]
FAKE, REAL = "tests.support.fake_engine_worker", "polyfleet.serving"


class RunningWorker:
    """`async with RunningWorker(tmp_path, model="fake:step_seconds=0.01") as worker`: up, and ready if it has a model.

    `wait_ready=False` for one that will not be; `command=REAL` for the real engine and a real model. Options are given
    as on the command line, with their dashes.
    """

    def __init__(
        self,
        folder: Path,
        *options: str,
        model: str = "",
        wait_ready: bool = True,
        command: str = FAKE,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.lock_path = folder / "worker.json"
        self._command = command
        self._environ = environ
        self.options = [*options, *(["--model", model, "--model-name", "fake"] if model else [])]
        self._wait_ready = wait_ready and bool(model)
        self.process: asyncio.subprocess.Process
        self.lock: WorkerLock
        self.errors = ""

    async def __aenter__(self) -> "RunningWorker":
        await self.spawn(self._environ)
        try:
            await self._until_up()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def spawn(self, environ: Mapping[str, str] | None = None) -> None:
        """Start without waiting for anything."""
        command = [sys.executable, "-m", self._command, "--accelerator", "cpu"]
        command += ["--lock-file", str(self.lock_path), *self.options]
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH", "")])]  # a source tree's, not installed
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(environ or {})}
        self.process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE, env=env)

    async def __aexit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.exit_status()

    async def exit_status(self) -> int:
        """Wait for its end; its errors are in `errors` then."""
        _, errors = await self.process.communicate()
        self.errors += errors.decode()
        assert self.process.returncode is not None
        return self.process.returncode

    async def _until_up(self) -> None:
        while (lock := read_lock(self.lock_path)) is None or lock.pid != self.process.pid:
            if self.process.returncode is not None:
                await self.exit_status()
                raise AssertionError(f"the worker ended: {self.errors}")
            await asyncio.sleep(0.02)
        self.lock = lock
        while self._wait_ready and (await self.status()).status.state != fleet.WORKER_STATE_READY:
            await asyncio.sleep(0.02)

    @property
    def address(self) -> str:
        """Of its Worker service."""
        return self.lock.address

    async def status(self) -> pb.StatusResponse:
        """Its answer to Status."""
        async with grpc.aio.insecure_channel(self.address, options=OWN_CONNECTION) as channel:
            answer = await worker_pb2_grpc.WorkerStub(channel).Status(pb.StatusRequest())
            assert isinstance(answer, pb.StatusResponse)
            return answer

    async def until_state(self, state: "fleet.WorkerState.ValueType") -> None:
        """Wait until it says so."""
        while (await self.status()).status.state != state:
            await asyncio.sleep(0.02)

    def session(self, gateway_id: str = "g-test") -> SessionClient:
        """A new session with it."""
        return SessionClient(self.address, gateway_id)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def engine(self) -> psutil.Process:
        """Its engine process."""
        (child,) = psutil.Process(self.process.pid).children()
        return child
