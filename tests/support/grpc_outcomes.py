"""How a gRPC call ends, as the name of its status."""

from typing import Any

import grpc


async def outcome(call: Any) -> str:
    """OK once all of its answer has been read, else the status."""
    try:
        if hasattr(call, "__aiter__"):
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
    return "OK"
