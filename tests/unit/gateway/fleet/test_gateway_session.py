"""Session over whatever is dialled: what it sends, and what becomes of its sequences when the call ends."""

import asyncio
import logging
from collections.abc import Callable

import pytest
from tests.support.gateway_rig import until

from polyfleet.gateway.fleet.session import Session
from polyfleet.gateway.listeners import Listeners
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.v1 import inference_pb2, worker_pb2
from polyfleet.wire.answers import SequenceUpdate
from polyfleet.wire.requests import SequenceRequest

READY = worker_pb2.SessionEvent(status=pb.WorkerStatus(state=pb.WORKER_STATE_READY)).SerializeToString()


class Call:
    """A conversation that keeps what it is told to send."""

    def __init__(self, received: Callable[[bytes], None]) -> None:
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.sent: list[worker_pb2.SessionCommand] = []
        self._received = received

    def send(self, message: bytes) -> None:
        self.sent.append(worker_pb2.SessionCommand.FromString(message))

    def hear(self, message: bytes) -> None:
        try:
            self._received(message)
        except Exception as error:
            self.ended.set_exception(error)

    def close(self) -> None:
        if not self.ended.done():
            self.ended.set_result("it was closed")


class Dialled:
    """All calls of a session."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        info = pb.WorkerInfo(worker_id="w", address="a:1", model=pb.ModelInfo(name="m"))
        self.session = Session(info, "gw", self.dial, Listeners())
        self.lost_for: list[str] = []

    async def dial(self, address: str, received: Callable[[bytes], None]) -> Call:
        assert address == "a:1"
        self.calls.append(Call(received))
        return self.calls[-1]

    async def __aenter__(self) -> "Dialled":
        self.session.open()
        await until(lambda: bool(self.calls and self.calls[0].sent))
        self.calls[0].hear(READY)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()

    def start(self, name: str) -> None:
        self.session.start(SequenceRequest(name, (1,)), self)

    # A SequenceSink.

    def updated(self, update: SequenceUpdate) -> None:
        raise ZeroDivisionError("a fault of ours")

    def lost(self, reason: str) -> None:
        self.lost_for.append(reason)


async def test_hello_comes_first_and_all_else_in_its_order() -> None:
    async with Dialled() as it:
        for name in ("a", "b"):
            it.start(name)
        it.session.cancel("a")
        kinds = [each.WhichOneof("command") for each in it.calls[0].sent]
    assert kinds == ["hello", "start", "start", "cancel"]
    assert it.calls[0].ended.done()  # closing the session closes its call


async def test_a_call_that_ends_is_a_loss_to_its_sequences_and_another_is_made() -> None:
    async with Dialled() as it:
        it.start("a")
        it.calls[0].ended.set_result("gone")
        await until(lambda: len(it.calls) == 2 and bool(it.calls[1].sent))
        assert it.lost_for == ["gone"]
        assert not it.session.connected
        assert [each.WhichOneof("command") for each in it.calls[1].sent] == ["hello"]


@pytest.mark.parametrize("message", [b"\xff\xff", READY[:-1]])
async def test_what_cannot_be_read_is_the_workers_fault(message: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with Dialled() as it:
        it.start("a")
        it.calls[0].hear(message)
        await until(lambda: len(it.calls) == 2)
    assert it.lost_for == ["what the worker sent can't be read"]
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


async def test_a_fault_of_ours_ends_one_call_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with Dialled() as it:
        it.start("a")
        delta = worker_pb2.SequenceDelta(sequence_id="a", token_ids=[1])
        it.calls[0].hear(worker_pb2.SessionEvent(deltas=[delta]).SerializeToString())
        await until(lambda: len(it.calls) == 2)
    assert it.lost_for == ["the gateway failed"]
    assert [each.message for each in caplog.records if each.levelno >= logging.ERROR] == ["A session failed."]


class Noted:
    """A SequenceSink that notes its news in a list of all."""

    def __init__(self, news: list[tuple[str, bool]]) -> None:
        self._news = news

    def updated(self, update: SequenceUpdate) -> None:
        self._news.append((update.sequence_id, update.finish_reason is not None))

    def lost(self, reason: str) -> None:
        self._news.append((f"lost: {reason}", True))


async def test_ends_come_behind_the_tokens_of_other_sequences_and_survive_the_session() -> None:
    async with Dialled() as it:
        news: list[tuple[str, bool]] = []
        for name in ("a", "b"):
            it.session.start(SequenceRequest(name, (1,)), Noted(news))
        event = worker_pb2.SessionEvent()
        event.deltas.add(sequence_id="a", token_ids=[1], finish_reason=inference_pb2.FINISH_REASON_LENGTH)
        event.deltas.add(sequence_id="b", token_ids=[2])
        it.calls[0].hear(event.SerializeToString())
        assert news == [("b", False)]
        assert it.session.num_sequences == 1
        it.calls[0].ended.set_result("gone")
        await until(lambda: len(news) == 3)
    assert news[1:] == [("a", True), ("lost: gone", True)]
