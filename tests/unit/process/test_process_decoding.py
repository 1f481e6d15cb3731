"""A call's message goes with the call, however it ends: gRPC keeps what it raised as long as the connection."""

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from polyfleet.process.decoding import DecodeInterceptor
from polyfleet.v1 import inference_pb2 as pb
from polyfleet.v1 import inference_pb2_grpc

KINDS = (pb.GenerateRequest, pb.EmbedRequest)
NAME = "known-to-this-test-alone"


class Service(inference_pb2_grpc.InferenceServicer):  # type: ignore[misc]
    """Refuses what has no messages, and everything that is to be embedded, from within an `except`."""

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        if not request.text:
            await self._refuse(request, context)
        yield pb.GenerateResponse()

    async def Embed(self, request: pb.EmbedRequest, context: Any) -> pb.EmbedResponse:
        await self._refuse(request, context)
        return pb.EmbedResponse()

    async def _refuse(self, request: Any, context: Any) -> None:
        try:
            raise ValueError(str(len(request.model)))
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))


async def _end(call: Any, request: Any) -> str:
    try:
        if isinstance(request, pb.EmbedRequest):
            await call(request)
        else:
            async for _ in call(request):
                pass
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


@pytest.mark.parametrize("how", ["refused stream", "whole stream", "refused answer"])
async def test_no_message_outlives_its_call(how: str) -> None:
    server = grpc.aio.server(interceptors=[DecodeInterceptor()])
    inference_pb2_grpc.add_InferenceServicer_to_server(Service(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    gc.collect()
    gc.disable()  # it comes too seldom to free what is large
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)
            for _ in range(4):
                if how == "refused answer":
                    assert await _end(stub.Embed, pb.EmbedRequest(model=NAME)) == "INVALID_ARGUMENT"
                else:
                    text = "text" if how == "whole stream" else None
                    ended = await _end(stub.Generate, pb.GenerateRequest(model=NAME, text=text))
                    assert ended == ("OK" if text else "INVALID_ARGUMENT")
            await asyncio.sleep(0.1)
            assert not [each for each in gc.get_objects() if type(each) in KINDS and each.model == NAME]
    finally:
        gc.enable()
        await server.stop(0)
