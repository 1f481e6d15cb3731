"""gRPC calls of bytes, whatever the method takes, and how they end.

With the synchronous client: the one of asyncio makes INTERNAL of a server that answers before it has heard everything.

    with RawChannel(address) as channel:
        status, answers = await channel.call("/polyfleet.v1.Inference/Embed", [b"…"])
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc

SECONDS = 60  # against a hang


class RawChannel:
    """A connection of its own to a server."""

    def __init__(self, address: str) -> None:
        self._channel: Any = grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])

    def __enter__(self) -> "RawChannel":
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    async def call(
        self, path: str, messages: Sequence[bytes], *, endless: bool = False, metadata: Sequence[Any] = ()
    ) -> tuple[str, list[bytes]]:
        """The status' name and what was answered; of an `endless` stream the first answer is enough."""
        return await asyncio.to_thread(self._call, path, messages, endless, metadata)

    def _call(
        self, path: str, messages: Sequence[bytes], endless: bool, metadata: Sequence[Any]
    ) -> tuple[str, list[bytes]]:
        answers: list[bytes] = []
        call = self._channel.stream_stream(path)(iter(messages), timeout=SECONDS, metadata=tuple(metadata))
        try:
            for answer in call:
                answers.append(answer)
                if endless:
                    call.cancel()
                    return "OK", answers
        except grpc.RpcError as error:
            return str(error.code().name), answers
        return "OK", answers
