"""A whole gateway in the test's event loop, with a fake Fleet and fake workers around it."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.rpc import error_details_pb2 as details_pb2
from google.rpc import status_pb2
from tests.support.fake_worker import FakeWorker
from tests.support.snapshot_fleet import SnapshotFleet
from tests.support.text_assets import assets_document, byte_level_tokenizer

from polyfleet.gateway.config import GatewayConfig, Limits
from polyfleet.gateway.server import Gateway
from polyfleet.v1 import fleet_pb2, inference_pb2_grpc
from polyfleet.v1 import inference_pb2 as pb

MODEL = "fake"
VOCABULARY = byte_level_tokenizer().get_vocab_size()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until `condition` holds; a minute without it is a failure."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "never came true"
        await asyncio.sleep(0.005)


class GatewayRig:
    """`async with GatewayRig(max_queued=5) as rig`: keyword arguments are Limits, `config` replaces other settings.

    rig.stub calls the gateway over gRPC; rig.http and rig.metrics are its HTTP addresses; rig.gateway and rig.fleet
    are the parts.
    """

    def __init__(self, *, config: dict[str, Any] | None = None, **limits: Any) -> None:
        self._config = config or {}
        self._limits = Limits(**limits)
        self._stack = AsyncExitStack()
        self.fleet = SnapshotFleet()
        self.gateway: Gateway
        self.stub: Any
        self.http = self.metrics = ""

    async def __aenter__(self) -> "GatewayRig":
        await self._stack.enter_async_context(self.fleet)
        settings = dict.fromkeys(("grpc_listen", "http_listen", "metrics_listen"), "127.0.0.1:0")
        settings |= {"fleet": self.fleet.address}
        self.gateway = Gateway(GatewayConfig(limits=self._limits, **(settings | self._config)))
        await self.gateway.start()
        self._stack.push_async_callback(self.gateway.stop)
        self.http = f"http://127.0.0.1:{self.gateway.http.port}"
        self.metrics = f"http://127.0.0.1:{self.gateway.monitoring.port}"
        channel = self.channel()
        self._stack.push_async_callback(channel.close)
        self.stub = inference_pb2_grpc.InferenceStub(channel)
        await until(lambda: self.gateway.view.known)
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._stack.aclose()

    def channel(self, *options: tuple[str, Any]) -> Any:
        """Another connection to the gateway."""
        options = (("grpc.use_local_subchannel_pool", 1), *options)
        return grpc.aio.insecure_channel(f"127.0.0.1:{self.gateway.grpc.port}", options=options)

    async def add(self, *workers: FakeWorker) -> None:
        """Start workers, publish them, and wait until the gateway can use them."""
        for worker in workers:
            await self._stack.enter_async_context(worker)
            if worker.assets:
                self.fleet.add_assets(worker.assets)
            self.fleet.workers[worker.worker_id] = fleet_pb2.FleetWorker(info=worker.info(), status=worker.status())
        self.fleet.publish()
        ids = {worker.worker_id for worker in workers}
        sessions = self.gateway.view.sessions
        await until(lambda: ids <= {i for i, session in sessions.items() if session.connected})
        await until(lambda: all(worker.sessions for worker in workers))  # a Hello that is written may yet be on its way

    async def drop(self, *workers: FakeWorker) -> None:
        """Kill workers and tell the gateway so."""
        for worker in workers:
            self.fleet.workers.pop(worker.worker_id, None)
            await worker.kill()
        self.fleet.publish()


def text_worker(worker_id: str, **options: Any) -> FakeWorker:
    """A fake worker with the small byte-level tokenizer."""
    return FakeWorker(worker_id, MODEL, assets=assets_document(), vocabulary_size=VOCABULARY, **options)


class Stream:
    """What came of one Generate call, by choice."""

    def __init__(self, messages: Sequence[pb.GenerateResponse]) -> None:
        self.messages = list(messages)

    @classmethod
    async def read(cls, call: Any) -> "Stream":
        """All of it; raises AioRpcError when the call fails."""
        return cls([message async for message in call])

    def ids(self, choice: int = 0) -> list[int]:
        """Token ids of one choice."""
        return [i for message in self.messages if message.choice == choice for i in message.token_ids]

    def text(self, choice: int = 0) -> str:
        """Text of one choice."""
        return "".join(message.text for message in self.messages if message.choice == choice)

    def reasons(self) -> dict[int, int]:
        """Finish reason by choice."""
        return {message.choice: message.finish_reason for message in self.messages if message.finish_reason}

    def workers(self, choice: int = 0) -> list[str]:
        """Workers of one choice, in order."""
        return [message.worker_id for message in self.messages if message.choice == choice and message.worker_id]

    @property
    def usage(self) -> pb.Usage:
        """Of the last message."""
        return self.messages[-1].usage


@dataclass
class Failure:
    """A call's status with its details unpacked."""

    code: grpc.StatusCode
    message: str
    fields: dict[str, str] = field(default_factory=dict)  # of BadRequest
    retry_seconds: float | None = None  # of RetryInfo
    quotas: list[str] = field(default_factory=list)  # subjects of QuotaFailure
    reason: str = ""  # of ErrorInfo

    @classmethod
    def of(cls, error: Any) -> "Failure":
        """From the AioRpcError that a call raised."""
        failure = cls(error.code(), error.details())
        status = status_pb2.Status()
        for key, value in error.trailing_metadata():
            if key == "grpc-status-details-bin":
                status.ParseFromString(value)
                assert status.code == error.code().value[0]
        for detail in status.details:
            bad, retry, quota = details_pb2.BadRequest(), details_pb2.RetryInfo(), details_pb2.QuotaFailure()
            info = details_pb2.ErrorInfo()
            if detail.Unpack(bad):
                failure.fields |= {each.field: each.description for each in bad.field_violations}
            elif detail.Unpack(retry):
                failure.retry_seconds = retry.retry_delay.ToTimedelta().total_seconds()
            elif detail.Unpack(info):
                failure.reason = info.reason
            elif detail.Unpack(quota):
                failure.quotas += [each.subject for each in quota.violations]
        return failure


async def failure_of(call: Any) -> Failure:
    """The status that a call (stream or not) fails with; the test fails when it does not."""
    try:
        await (Stream.read(call) if hasattr(call, "__aiter__") else call)
    except grpc.aio.AioRpcError as error:
        return Failure.of(error)
    raise AssertionError("the call went well")
