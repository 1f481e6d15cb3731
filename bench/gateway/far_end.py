"""What lies behind a gateway or relay, as one process: a fleet of one worker, and the same tokens as `Generate`.

    python -m bench.gateway.far_end STEP_SECONDS

A worker's step gives every stream of it one token, in one message a session. Prints its ports in one line.
"""

import asyncio
import sys
from typing import Any

import grpc
from tests.support.fake_worker import FakeWorker
from tests.support.snapshot_fleet import SnapshotFleet
from tests.support.text_assets import assets_document, byte_level_tokenizer

from polyfleet.v1 import fleet_pb2
from polyfleet.v1 import inference_pb2 as pb

MODEL = "bench"
SEQUENCES = 1024
TOKENS = 32
GENERATE = "/polyfleet.v1.Inference/Generate"
RAW = [("grpc.so_reuseport", 0), ("grpc.max_concurrent_streams", SEQUENCES)]


def message(index: int) -> bytes:
    """The stream's message of that token."""
    delta = pb.GenerateResponse(token_ids=[100 + index], text=" token")
    if index == TOKENS - 1:
        delta.finish_reason = pb.FINISH_REASON_LENGTH
    return delta.SerializeToString()


MESSAGES = [message(index) for index in range(TOKENS)]


def bare_server(handle: Any) -> tuple[Any, int]:
    """A server of grpc.aio whose only method is `Generate`, in bytes; and its port."""
    handler = grpc.unary_stream_rpc_method_handler(handle)  # without serializers: bytes as they are
    server = grpc.aio.server(options=RAW)
    service, method = GENERATE.strip("/").split("/")
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {method: handler})])
    return server, server.add_insecure_port("127.0.0.1:0")


class Steps:
    """One clock for all streams, as of a worker's steps."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next: asyncio.Future[None] | None = None

    async def generate(self, _: bytes, context: Any) -> None:
        """A token each step."""
        for each in MESSAGES:
            await self._step()
            await context.write(each)

    async def _step(self) -> None:
        loop = asyncio.get_running_loop()
        if self._next is None:
            self._next = loop.create_future()
            late = loop.time() % self._seconds
            loop.call_later(self._seconds - late, self._tick, self._next)
        await asyncio.shield(self._next)

    def _tick(self, step: "asyncio.Future[None]") -> None:
        self._next = None
        step.set_result(None)


async def run(seconds: float) -> None:
    """Until killed."""
    server, port = bare_server(Steps(seconds).generate)
    await server.start()
    options: dict[str, Any] = {"token_seconds": seconds, "max_sequences": SEQUENCES, "context_length": 4096}
    options |= {"assets": assets_document(), "vocabulary_size": byte_level_tokenizer().get_vocab_size()}
    async with SnapshotFleet() as fleet, FakeWorker("w-bench", MODEL, **options) as worker:
        fleet.add_assets(worker.assets)
        fleet.publish([fleet_pb2.FleetWorker(info=worker.info(), status=worker.status())])
        print(fleet.address, worker.address, f"127.0.0.1:{port}", flush=True)
        await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(run(float(sys.argv[1])))
