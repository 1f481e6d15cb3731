"""A worker measured without its gateway: `Worker.Session`, as a gateway speaks it."""

import asyncio
import time
from typing import Any

import grpc

from polyfleet.benchmark.work import Job, Outcome
from polyfleet.v1 import inference_pb2, worker_pb2
from polyfleet.v1.worker_pb2_grpc import WorkerStub
from polyfleet.wire.auth import bearer_metadata
from polyfleet.wire.ids import new_id

GREEDY = inference_pb2.SamplingParams(
    temperature=0,
    top_p=1,
    top_k=0,
    min_p=0,
    seed=0,
    repetition_penalty=1,
    presence_penalty=0,
    frequency_penalty=0,
)
OPTIONS = [("grpc.max_receive_message_length", 64 * 1024 * 1024), ("grpc.enable_http_proxy", 0)]


class WorkerTarget:
    """One session with the worker at `address`. Jobs must hold token ids."""

    def __init__(self, name: str, address: str, fleet_token: str = "") -> None:
        self.name = name
        self.address = address
        self._metadata = bearer_metadata(fleet_token or None)
        self._events: dict[str, asyncio.Queue[worker_pb2.SequenceDelta | None]] = {}

    async def run(self, job: Job, due: float) -> Outcome:
        """See Target."""
        name = new_id("bench")
        deltas = self._events[name] = asyncio.Queue()
        first = last = 0.0
        tokens = 0
        try:
            await self._call.write(worker_pb2.SessionCommand(start=_start(name, job)))
            while delta := await deltas.get():
                if delta.HasField("error"):
                    return Outcome(due, error=delta.error.message)
                if delta.token_ids:
                    last = time.monotonic()
                    first = first or last
                    tokens += len(delta.token_ids)
                if delta.finish_reason:
                    return Outcome(due, first or last, last, time.monotonic(), len(job.token_ids), tokens)
            return Outcome(due, error="the session broke")
        finally:
            del self._events[name]

    async def __aenter__(self) -> "WorkerTarget":
        self._channel = grpc.aio.insecure_channel(self.address, OPTIONS)
        self._call: Any = WorkerStub(self._channel).Session(metadata=self._metadata)
        hello = worker_pb2.Hello(gateway_id=new_id("bench"))
        await self._call.write(worker_pb2.SessionCommand(hello=hello))
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._call.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        await self._channel.close(None)

    async def _read(self) -> None:
        try:
            async for event in self._call:
                for delta in event.deltas:
                    if delta.sequence_id in self._events:
                        self._events[delta.sequence_id].put_nowait(delta)
        finally:
            for queue in self._events.values():
                queue.put_nowait(None)


def _start(name: str, job: Job) -> worker_pb2.StartSequence:
    return worker_pb2.StartSequence(
        sequence_id=name,
        request_id=name,
        prompt_ids=job.token_ids,
        sampling=GREEDY,
        max_tokens=job.max_tokens,
        ignore_eos=True,
    )
