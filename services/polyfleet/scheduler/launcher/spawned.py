"""Looking after a worker that this launcher starts: adopt or start, watch, start again with back-off, stop."""

import asyncio
import contextlib
import logging
import time

import grpc

from polyfleet.process.channels import FleetAccess
from polyfleet.process.tasks import end
from polyfleet.process.within import Within
from polyfleet.scheduler.launcher.backoff import Backoff
from polyfleet.scheduler.launcher.latest_report import LatestReport
from polyfleet.scheduler.launcher.launch import LaunchSpec, Phase
from polyfleet.scheduler.launcher.launched_process import LaunchedProcess, ending, live_lock
from polyfleet.scheduler.launcher.worker_client import WorkerClient

TERMINATE_SECONDS = 3.0  # between SIGTERM, SIGTERM and SIGKILL
LOOK_SECONDS = 10.0  # between looks whether a worker answers
SILENT_LOOKS = 6  # so many in a row without an answer, and its process is killed
SILENT = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)
log = logging.getLogger(__name__)


class SpawnedWorker:
    """One worker process for as long as it is wanted. `run` ends once the worker has left in good order."""

    def __init__(self, spec: LaunchSpec, latest: LatestReport, access: FleetAccess) -> None:
        self._spec, self._latest, self._access = spec, latest, access
        self._process: LaunchedProcess | None = None
        self._stop = asyncio.Event()
        self._left = asyncio.Event()

    async def run(self) -> None:
        """Keep the worker running until it leaves with status 0 or `stop` is called."""
        backoff = Backoff()
        while not self._stop.is_set():
            began = time.monotonic()
            status, reason = await self._run_once()
            if status == 0 or self._stop.is_set():
                break
            delay = backoff.delay_after(time.monotonic() - began)
            log.warning("%s It is started again in %.1f s.", reason, delay)
            self._latest.publish(Phase.FAILED, reason=reason, restarted=True)
            with contextlib.suppress(asyncio.TimeoutError), Within(delay):
                await self._stop.wait()
        self._latest.publish(Phase.LEFT)
        self._left.set()

    async def _run_once(self) -> tuple[int | None, str]:
        """One process from start or adoption to its end: exit status and the reason in words."""
        try:
            process = LaunchedProcess.adopt(self._spec) or await LaunchedProcess.start(self._spec)
        except OSError as error:
            return 1, f"The worker can't be started: {error.strerror}: {error.filename}."
        self._process = process
        log.info("The worker's process runs.", extra={"worker_pid": process.pid})
        self._latest.publish(Phase.WATCHING, pid=process.pid)
        watching = asyncio.create_task(self._until_silent(process))
        try:
            status = await process.wait()
            hung = watching.done()
        finally:
            self._process = None
            await end(watching)
        return status, "The worker did not answer any more and was killed." if hung else ending(self._spec, status)

    async def _until_silent(self, process: LaunchedProcess) -> None:
        """Kill a process that hangs: its port is open and it answers no call. Looks are counted, not time, since this
        process may have been stopped itself.
        """
        looks = 0
        while looks < SILENT_LOOKS:
            await asyncio.sleep(LOOK_SECONDS)
            lock = live_lock(self._spec)
            up = lock if lock and lock.pid == process.pid else None  # else it is about to open its port
            looks = looks + 1 if up and not await self._answers(up.address) else 0
        process.kill()

    async def _answers(self, address: str) -> bool:
        try:
            async with WorkerClient(address, self._access) as client:
                await client.status()
        except grpc.aio.AioRpcError as error:
            return error.code() not in SILENT
        return True

    async def stop(self, grace: float) -> None:
        """Let the worker finish for at most `grace` seconds; returns when its process has ended."""
        self._stop.set()
        self._latest.publish_stopping()
        if self._process:
            await self._ask_to_leave(self._process)
        if await self._has_left(grace):
            return
        for _ in range(2):  # the second SIGTERM ends a worker that the first one only made drain
            if self._process:
                self._process.terminate()
            if await self._has_left(TERMINATE_SECONDS):
                return
        if self._process:
            self._process.kill()
        await self._left.wait()

    async def _ask_to_leave(self, process: LaunchedProcess) -> None:
        """By RPC; by SIGTERM when its port is not open yet or does not answer."""
        lock = live_lock(self._spec)
        if lock and lock.pid == process.pid:
            with contextlib.suppress(grpc.aio.AioRpcError):
                async with WorkerClient(lock.address, self._access) as client:
                    await client.drain(leave=True)
                return
        process.terminate()

    async def _has_left(self, seconds: float) -> bool:
        with contextlib.suppress(asyncio.TimeoutError), Within(seconds):
            await self._left.wait()
        return self._left.is_set()
