"""Registration at the scheduler's `Fleet`, for ever: announce, report, send tokenizer assets, obey `stop`.

Without a scheduler the worker serves on and dials again, from 0.2 s up to 5 s apart, with jitter.
"""

import asyncio
import contextlib
import logging
import random
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import grpc

from polyfleet.convert.assets import asset_chunks
from polyfleet.process.channels import FLEET_CHANNEL, FleetAccess
from polyfleet.process.keys import Role
from polyfleet.process.tasks import end
from polyfleet.process.within import Within
from polyfleet.serving.device_report import device_report
from polyfleet.serving.health.device_watch import DeviceState
from polyfleet.serving.worker import Worker
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.v1 import fleet_pb2_grpc
from polyfleet.wire.limits import GRPC_MAX_MESSAGE_BYTES

log = logging.getLogger(__name__)

REPORT_SECONDS = 0.5
CLOSE_SECONDS = 1.0  # for a Fleet to take what was sent last
FIRST_REDIAL_SECONDS, LAST_REDIAL_SECONDS = 0.2, 5.0
CERTIFICATES_DIFFER = re.compile("CERTIFICATE_VERIFY_FAILED|Hostname Verification Check failed")
CALL_ENDS = (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError)  # as its writers and readers see it
OPTIONS = (
    *FLEET_CHANNEL,
    ("grpc.max_receive_message_length", GRPC_MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", GRPC_MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
)


class Registration:
    """Keeps one worker registered at one Fleet address."""

    def __init__(
        self,
        worker: Worker,
        fleet: str,
        access: FleetAccess,
        devices: Callable[[], Sequence[DeviceState]] = lambda: (),
        longest_pause: float = LAST_REDIAL_SECONDS,
        up: asyncio.Event | None = None,
    ) -> None:
        """`devices`: the worker's own, as they were last read. `longest_pause`: seconds between two dials.
        `up`: set while there is a way to that address; None: always.
        """
        self._worker = worker
        self._devices = devices
        self._fleet = fleet
        self._access = access
        self._longest_pause = longest_pause
        self._up = up
        self._assets: asyncio.Queue[pb.AssetChunk] = asyncio.Queue()
        self._heard = False  # by this stream's Fleet
        self._leaving = False
        self._left = asyncio.Event()

    async def run(self) -> None:
        """Dial, report, dial again; until cancelled, or told to leave."""
        pause, told = FIRST_REDIAL_SECONDS, set[str]()
        while True:
            self._heard = False
            if self._up:
                await self._up.wait()
            reason = await self._dial()
            if self._leaving and self._heard:
                self._left.set()
                return
            if self._heard:
                pause, told = FIRST_REDIAL_SECONDS, set()
            level = logging.DEBUG if reason in told else logging.WARNING
            log.log(level, "The Fleet at %s left: %s", self._fleet, reason)
            told.add(reason)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, self._longest_pause)

    async def leave(self, timeout: float, *, dial: bool) -> None:
        """Report the present state a last time and close the stream well; at most `timeout` seconds.

        Without a stream nothing is reported, unless `dial` (it matters: somebody should hear why the worker ends).
        """
        if self._heard or dial:
            self._leaving = True
            self._worker.revision.advance()
            with contextlib.suppress(asyncio.TimeoutError), Within(timeout):
                await self._left.wait()

    async def _dial(self) -> str:
        """One stream, until it ends; why it ended."""
        async with self._access.channel(self._fleet, Role.SCHEDULER, OPTIONS) as channel:
            call: Any = fleet_pb2_grpc.FleetStub(channel).Register(metadata=self._access.current_metadata())
            answers = asyncio.create_task(self._read(call))
            reports = asyncio.create_task(self._report(call))
            try:
                done, _ = await asyncio.wait({answers, reports}, return_when=asyncio.FIRST_COMPLETED)
                _raise_faults(done)
                if self._leaving:
                    await asyncio.wait({answers}, timeout=CLOSE_SECONDS)
                    return "this worker left"
                return f"{await call.code()} {await call.details()}" + self._mismatch(str(await call.details()))
            finally:
                await end(answers, reports)

    def _mismatch(self, details: str) -> str:
        """What to do where two certificates do not belong together, which gRPC says in its own words; else empty."""
        if (tls := self._access.tls) is None or not CERTIFICATES_DIFFER.search(details):
            return ""
        return (
            " The scheduler's certificate does not fit; "
            f"this worker's is of the fleet {tls.member.fleet}: both need the same fleet and roots."
        )

    async def _report(self, call: Any) -> None:
        """Info first and whenever it changed; status every 0.5 s and at each change; assets when asked for."""
        announced: pb.WorkerInfo | None = None
        told: Sequence[DeviceState] = ()
        while True:
            seen, leaving, info = self._worker.revision.number, self._leaving, self._worker.info()
            if info != announced:
                await call.write(pb.RegisterRequest(info=info))
                announced = info
            await call.write(pb.RegisterRequest(status=self._worker.status()))
            if (devices := self._devices()) is not told:
                await call.write(pb.RegisterRequest(devices=device_report(devices)))
                told = devices
            while not self._assets.empty():
                await call.write(pb.RegisterRequest(asset=self._assets.get_nowait()))
            if leaving:
                await call.done_writing()
                return
            await self._worker.revision.wait(seen, REPORT_SECONDS)

    async def _read(self, call: Any) -> None:
        async for answer in call:
            if not self._heard:
                log.info("Registered at the Fleet at %s.", self._fleet)
            self._heard = True
            if answer.want_asset and answer.want_asset == self._worker.info().model.tokenizer_hash:
                for chunk in asset_chunks(answer.want_asset, self._worker.tokenizer):
                    self._assets.put_nowait(chunk)
                self._worker.revision.advance()
            if answer.stop:
                log.info("The Fleet does not want this worker any more.")
                self._worker.drain(leave=True)


def _raise_faults(tasks: Iterable["asyncio.Task[None]"]) -> None:
    """Raise what ended a task and was no end of its call: a fault of ours."""
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) and not isinstance(error, CALL_ENDS):
            raise error
