"""Bare contenders, each as one process: what gRPC's own work is, with nothing of a gateway's.

    python -m bench.gateway.relays server|relay|multiplexed FAR_END STEP_SECONDS

`server` writes tokens of its own. `relay` has one upstream stream for each of its clients', and passes bytes on.
`multiplexed` has one upstream `Session` for all, whose messages carry a whole step. Prints its address in one line.
"""

import asyncio
import itertools
import sys
from collections.abc import Callable
from typing import Any

import grpc
from bench.gateway.far_end import GENERATE, TOKENS, Steps, bare_server

from polyfleet.v1 import inference_pb2 as pb
from polyfleet.v1 import worker_pb2, worker_pb2_grpc


class Relay:
    """A stream for a stream."""

    def __init__(self, address: str) -> None:
        channel: Any = grpc.aio.insecure_channel(address)
        self._call = channel.unary_stream(GENERATE)

    async def generate(self, request: bytes, context: Any) -> None:
        """Bytes as they come."""
        call = self._call(request)
        while isinstance(message := await call.read(), bytes):
            await context.write(message)


class Multiplexed:
    """All streams over one."""

    def __init__(self, address: str) -> None:
        self._session: Any = worker_pb2_grpc.WorkerStub(grpc.aio.insecure_channel(address)).Session()
        self._numbers = itertools.count()
        self._queues: dict[str, asyncio.Queue[worker_pb2.SequenceDelta]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()

    async def generate(self, _: bytes, context: Any) -> None:
        """A message for each delta."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
            await self._write(worker_pb2.SessionCommand(hello=worker_pb2.Hello(gateway_id="bench")))
        name = str(next(self._numbers))
        queue = self._queues[name] = asyncio.Queue()
        start = worker_pb2.StartSequence(sequence_id=name, prompt_ids=[1, 2, 3], max_tokens=TOKENS, ignore_eos=True)
        await self._write(worker_pb2.SessionCommand(start=start))
        while True:
            delta = await queue.get()
            ids, reason = delta.token_ids, delta.finish_reason
            response = pb.GenerateResponse(token_ids=ids, text=" token", finish_reason=reason)
            await context.write(response.SerializeToString())
            if reason:
                del self._queues[name]
                return

    async def _write(self, command: worker_pb2.SessionCommand) -> None:
        async with self._writing:
            await self._session.write(command)

    async def _read(self) -> None:
        while isinstance(event := await self._session.read(), worker_pb2.SessionEvent):
            for delta in event.deltas:
                self._queues[delta.sequence_id].put_nowait(delta)


async def run(kind: str, far_end: str, seconds: float) -> None:
    """Until killed."""
    kinds: dict[str, Callable[[], Any]] = {
        "server": lambda: Steps(seconds).generate,
        "relay": lambda: Relay(far_end).generate,
        "multiplexed": lambda: Multiplexed(far_end).generate,
    }
    server, port = bare_server(kinds[kind]())
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], float(sys.argv[3])))
