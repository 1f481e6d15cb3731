"""The part of a worker that looks at models, without any: what it says is what a test wants it to."""

import json
from typing import Any

import grpc

from polyfleet.v1 import worker_pb2, worker_pb2_grpc

GIB = 2**30


class Looker(worker_pb2_grpc.WorkerServicer):  # type: ignore[misc]
    """Sees one model, or has a problem with it; it fits, or does not."""

    def __init__(self) -> None:
        self.asked = list[worker_pb2.InspectRequest]()
        self.problem: tuple[grpc.StatusCode, str] | None = None
        self.fits = True

    async def Inspect(self, request: worker_pb2.InspectRequest, context: Any) -> worker_pb2.InspectResponse:
        self.asked.append(request)
        if self.problem:
            await context.abort(*self.problem)
        fits = [fit(each.name, each.memory_bytes, "" if self.fits else "no room") for each in request.sites]
        found = {"name": "m", "architecture": "Llama", "parameters": 1000, "context_length": 64, "fits": fits}
        return worker_pb2.InspectResponse(inspection=json.dumps(found))


def fit(device: str, memory: int, problem: str) -> dict[str, Any]:
    sizes = dict.fromkeys(("state_bytes_per_sequence", "dequantised"), 0)
    sizes |= {"weight_bytes": GIB, "kv_bytes_per_token": 256, "context_length": 64, "max_sequences": 2}
    words = {"executor": "captured", "dtype": "", "dequantised_because": "", "problem": problem}
    more = {"kv_cache_tokens": 128, "changes": ["a device with 2 GiB free"] if problem else []}
    return {"device": device, "memory_bytes": memory, **sizes, **words, **more}
