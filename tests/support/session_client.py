"""One `Worker.Session` as a gateway holds it, for tests of workers."""

from collections.abc import AsyncIterator, Sequence

import grpc

from polyfleet.v1 import worker_pb2 as pb
from polyfleet.v1 import worker_pb2_grpc

OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


class SessionClient:
    """`async with SessionClient(address) as session`: says Hello, then starts, cancels and reads."""

    def __init__(
        self,
        address: str,
        gateway_id: str = "g-test",
        metadata: Sequence[tuple[str, str]] = (),
        channel: grpc.aio.Channel | None = None,
    ) -> None:
        self.channel = channel or grpc.aio.insecure_channel(address, options=OWN_CONNECTION)
        self.stub = worker_pb2_grpc.WorkerStub(self.channel)
        self.call = self.stub.Session(metadata=tuple(metadata))
        self._gateway_id = gateway_id

    async def __aenter__(self) -> "SessionClient":
        await self.call.write(pb.SessionCommand(hello=pb.Hello(gateway_id=self._gateway_id)))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close(None)

    async def start(self, start: pb.StartSequence) -> None:
        """Send StartSequence."""
        await self.call.write(pb.SessionCommand(start=start))

    async def cancel(self, sequence_id: str) -> None:
        """Send CancelSequence."""
        await self.call.write(pb.SessionCommand(cancel=pb.CancelSequence(sequence_id=sequence_id)))

    async def event(self) -> pb.SessionEvent:
        """The next event. Fails the test when the stream ends well; raises AioRpcError when it breaks."""
        event = await self.call.read()
        assert isinstance(event, pb.SessionEvent), "the session ended"
        return event

    async def deltas(self) -> AsyncIterator[pb.SequenceDelta]:
        """All deltas until the session ends."""
        while isinstance(event := await self.call.read(), pb.SessionEvent):
            for delta in event.deltas:
                yield delta

    async def run_to_end(self, count: int = 1) -> dict[str, list[pb.SequenceDelta]]:
        """Deltas by sequence until `count` sequences have ended."""
        seen: dict[str, list[pb.SequenceDelta]] = {}
        while count > 0:
            for delta in (await self.event()).deltas:
                seen.setdefault(delta.sequence_id, []).append(delta)
                count -= ended(delta)
        return seen

    async def read_until_broken(self) -> tuple[list[pb.SequenceDelta], grpc.StatusCode]:
        """Deltas until the session breaks, and the status it broke with."""
        seen: list[pb.SequenceDelta] = []
        try:
            async for delta in self.deltas():
                seen.append(delta)
        except grpc.aio.AioRpcError as error:
            return seen, error.code()
        return seen, grpc.StatusCode.OK


def ended(delta: pb.SequenceDelta) -> bool:
    """Whether it is the last of its sequence."""
    return bool(delta.finish_reason) or delta.HasField("error")


def tokens_of(deltas: Sequence[pb.SequenceDelta]) -> list[int]:
    """Their tokens in order."""
    return [token for delta in deltas for token in delta.token_ids]
