"""Looking after a worker that stands beside the launcher and is started by others: find it, load it, watch it.

Only a worker without a model, or with one of this launcher's own deployment, is loaded or unloaded. Any other has an
owner, and is waited for.
"""

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
from polyfleet.scheduler.launcher.worker_client import WorkerClient
from polyfleet.v1 import fleet_pb2 as fleet
from polyfleet.v1 import worker_pb2 as pb

POLL_SECONDS = 1.0
_ABSENT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
log = logging.getLogger(__name__)


class AttachedWorker:
    """One worker at a given address. It is told what to load and, in the end, to unload; it is never killed."""

    def __init__(self, spec: LaunchSpec, latest: LatestReport, access: FleetAccess) -> None:
        self._spec, self._latest, self._access = spec, latest, access
        self._load = spec.load_request
        self._stop = asyncio.Event()
        self._idle = asyncio.Event()  # run() touches the worker no more
        self._begun = False  # it was told to load, or did already: each further load is a restart

    async def run(self) -> None:
        """Keep the worker loaded until `stop` is called."""
        self._latest.publish(Phase.STARTING, reason=f"It waits for a worker at {self._spec.launch.address}.")
        backoff = Backoff(first=POLL_SECONDS)
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                async with WorkerClient(self._spec.launch.address, self._access) as client:
                    await self._look_after(client)
            except grpc.aio.AioRpcError as error:
                self._failed(error)
            await self._pause(backoff.delay_after(time.monotonic() - began))
        self._idle.set()

    async def _look_after(self, client: WorkerClient) -> None:
        """Load what is wanted, then watch until the worker serves it no more."""
        status = await client.status()
        if owner := self._other_owner(status.info, status.status.state):
            reason = f"The worker at {self._spec.launch.address} {owner}; it is left alone until it is free."
            self._latest.publish(Phase.STARTING, worker_id="", reason=reason)
            return
        again, self._begun = self._begun, True
        if not self._serves(status):
            await self._load_into(client, status, again)
        while not self._stop.is_set():
            status = await client.status()
            if not self._serves(status):
                reason = status.status.reason or "The worker lost its model."
                self._latest.publish(Phase.FAILED, worker_id=status.info.worker_id, reason=reason)
                return
            self._latest.publish(Phase.WATCHING, worker_id=status.info.worker_id)
            await self._pause(POLL_SECONDS)

    async def _load_into(self, client: WorkerClient, found: pb.StatusResponse, again: bool) -> None:
        self._latest.publish(Phase.WATCHING, worker_id=found.info.worker_id, restarted=again)
        if found.status.state != fleet.WORKER_STATE_STARTING:
            await client.unload()  # the deployment's model of before
        log.info("The worker is told to load its model.", extra={"attached_worker_id": found.info.worker_id})
        load = asyncio.create_task(client.load(self._load))
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({load, stop}, return_when=asyncio.FIRST_COMPLETED)
            if load.done():  # else stop() unloads
                load.result()
        finally:
            await end(load, stop)

    def _other_owner(self, info: fleet.WorkerInfo, state: int) -> str:
        """What it does for somebody else, as the end of a sentence; empty when it is free or this launcher's own."""
        if info.own_model:
            return f"was started with its own model, {info.model.name or 'which it loads'}"
        if state != fleet.WORKER_STATE_STARTING and info.deployment != self._load.deployment:
            return f"serves the deployment {info.deployment!r}"
        return ""

    def _serves(self, found: pb.StatusResponse) -> bool:
        """Whether the worker has, or is loading, what this launcher is to keep there."""
        info, state = found.info, found.status.state
        if info.own_model or info.deployment != self._load.deployment:
            return False
        named = info.model.name in ("", self._load.model_name)
        return state == fleet.WORKER_STATE_LOADING or (state != fleet.WORKER_STATE_STARTING and named)

    def _failed(self, error: grpc.aio.AioRpcError) -> None:
        address = self._spec.launch.address
        if error.code() not in _ABSENT:
            self._latest.publish(Phase.FAILED, reason=error.details() or str(error.code()))
        elif self._latest.report.worker_id:
            self._latest.publish(Phase.FAILED, reason=f"The worker at {address} does not answer.")
        log.warning("A call to the worker failed.", extra={"address": address, "code": str(error.code())})

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError), Within(seconds):
            await self._stop.wait()

    async def stop(self, grace: float) -> None:
        """Let the worker finish for at most `grace` seconds and free its model; it stays, without one."""
        self._stop.set()
        self._latest.publish_stopping()
        await self._idle.wait()
        with contextlib.suppress(grpc.aio.AioRpcError):
            async with WorkerClient(self._spec.launch.address, self._access) as client:
                if self._serves(await client.status()):
                    await self._finish(client, grace)
                    await client.unload()
        self._latest.publish(Phase.LEFT)

    async def _finish(self, client: WorkerClient, grace: float) -> None:
        await client.drain(leave=False)
        deadline = time.monotonic() + grace
        while time.monotonic() < deadline:
            status = (await client.status()).status
            if not status.running_sequences + status.waiting_sequences:
                return
            await asyncio.sleep(min(POLL_SECONDS, max(0.0, deadline - time.monotonic())))
