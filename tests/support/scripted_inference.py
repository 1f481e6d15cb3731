"""A scripted `Inference` service on a real port: each call runs the next step of the script."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from polyfleet import client as pf
from polyfleet.v1 import inference_pb2 as pb
from polyfleet.v1.inference_pb2_grpc import InferenceServicer, add_InferenceServicer_to_server

Step = Callable[[Any, Any], Any]
QUICK = pf.RetryPolicy(attempts=3, initial_delay=0.001, max_delay=0.1)  # of a client that tries again at once


@dataclass
class Script(InferenceServicer):  # type: ignore[misc]
    """`steps` answer the calls in order, the last one every further call; `calls` are the requests received."""

    steps: list[Step] = field(default_factory=list)
    calls: list[Any] = field(default_factory=list)
    metadata: list[dict[str, Any]] = field(default_factory=list)
    seconds_left: list[float] = field(default_factory=list)  # of each call's deadline; very many without one
    ended: threading.Event = field(default_factory=threading.Event)  # set when a call has ended, well or not
    address: str = ""

    def _next(self, request: Any, context: Any) -> Step:
        self.calls.append(request)
        self.metadata.append({item.key: item.value for item in context.invocation_metadata()})
        self.seconds_left.append(context.time_remaining() or math.inf)
        context.add_callback(self.ended.set)
        return self.steps[min(len(self.calls), len(self.steps)) - 1]

    def Generate(self, request: Any, context: Any) -> Iterator[Any]:
        yield from self._next(request, context)(request, context)

    def Embed(self, request: Any, context: Any) -> Any:
        return self._next(request, context)(request, context)

    Rerank = Tokenize = ListModels = GetModel = Embed


def fail(code: int, message: str, *details: Any) -> Step:
    """A step that ends with this status; a generator too, so that it serves Generate as well."""
    packed: list[any_pb2.Any] = []
    for detail in details:
        packed.append(any_pb2.Any())
        packed[-1].Pack(detail)
    status = status_pb2.Status(code=code, message=message, details=packed)

    def step(request: Any, context: Any) -> Any:
        context.abort_with_status(rpc_status.to_status(status))

    return step


def unavailable(retry_seconds: float | None) -> Step:
    details = []
    if retry_seconds is not None:
        delay = duration_pb2.Duration(nanos=round(retry_seconds % 1 * 1e9), seconds=int(retry_seconds))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    return fail(code_pb2.UNAVAILABLE, "no worker is ready", *details)


def two_choices(request: Any, context: Any) -> Iterator[pb.GenerateResponse]:
    """A stream of two interleaved choices over two workers."""
    logprob = pb.TokenLogprobs(
        token_id=1, text="a", logprob=-0.5, top=[pb.TokenLogprobs(token_id=2, text="z", logprob=-1.5)]
    )
    yield pb.GenerateResponse(request_id="req-1", worker_id="w-1", text="a", token_ids=[1], logprobs=[logprob])
    yield pb.GenerateResponse(choice=1, text="x", token_ids=[7, 8], finish_reason=pb.FINISH_REASON_STOP)
    yield pb.GenerateResponse(worker_id="w-2", text="b", token_ids=[3], finish_reason=pb.FINISH_REASON_LENGTH)
    yield pb.GenerateResponse(usage=pb.Usage(prompt_tokens=5, cached_tokens=2, completion_tokens=4))


@contextmanager
def serve(*steps: Step, credentials: Any = None) -> Iterator[Script]:
    """The script, listening at its `address`, with TLS where server credentials are given."""
    script = Script(steps=list(steps))
    server = grpc.server(ThreadPoolExecutor(4))
    add_InferenceServicer_to_server(script, server)
    port = (
        server.add_secure_port("127.0.0.1:0", credentials) if credentials else server.add_insecure_port("127.0.0.1:0")
    )
    script.address = f"127.0.0.1:{port}"
    server.start()
    try:
        yield script
    finally:
        server.stop(0).wait()


def endless(request: Any, context: Any) -> Iterator[pb.GenerateResponse]:
    """Streams until the call is cancelled."""
    yield pb.GenerateResponse(request_id="req-1", worker_id="w-1", text="a", token_ids=[1])
    while context.is_active():
        yield pb.GenerateResponse(text="a", token_ids=[1])
        time.sleep(0.01)
