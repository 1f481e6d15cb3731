"""News of a session waits for its gateway: coalesced, in order, bounded."""

import asyncio
from collections.abc import AsyncIterator
from unittest.mock import Mock

import pytest

from polyfleet.process.within import Within
from polyfleet.serving.service import WorkerService
from polyfleet.serving.session import EVENT_BYTES, MAX_DELTA_TOKENS, MAX_UNREAD_DELTAS, NEWS_SECONDS, GatewaySession
from polyfleet.v1 import inference_pb2 as inference
from polyfleet.v1 import worker_pb2 as pb


def delta(name: str, *tokens: int, **more: object) -> pb.SequenceDelta:
    return pb.SequenceDelta(sequence_id=name, token_ids=tokens, **more)  # type: ignore[arg-type]


async def test_news_of_one_sequence_grows_together_while_nobody_reads() -> None:
    session = GatewaySession()
    session.open |= {"a": "1", "b": "2"}
    session.push(delta("a", 1, cached_tokens=7, queue_seconds=0.5, logprobs=[pb.SampledLogprobs(logprob=-1)]))
    session.push(delta("b", 10))
    session.push(delta("a", 2, logprobs=[pb.SampledLogprobs(logprob=-2, top_ids=[5])]))
    session.push(delta("a", 3, finish_reason=inference.FINISH_REASON_LENGTH))
    first, second = await session.take(10)
    assert (first.sequence_id, list(first.token_ids)) == ("a", [1, 2, 3])
    assert (first.cached_tokens, first.queue_seconds) == (7, 0.5)
    assert [each.logprob for each in first.logprobs] == [-1, -2]
    assert first.finish_reason == inference.FINISH_REASON_LENGTH
    assert (second.sequence_id, list(second.token_ids)) == ("b", [10])
    assert session.open == {"b": "2"}


async def test_who_has_nothing_to_hear_hears_soon_of_what_others_began() -> None:
    session = GatewaySession()
    session.hear_soon()  # before it waits, and while it does
    with Within(10):
        assert await session.take(3600) == []
    waits = asyncio.create_task(session.take(3600))
    await asyncio.sleep(0)
    session.hear_soon()
    with Within(10):
        assert await waits == []
    with pytest.raises(asyncio.TimeoutError), Within(2 * NEWS_SECONDS):  # that was all
        await session.take(3600)


async def test_a_taken_delta_is_not_touched_again() -> None:
    session = GatewaySession()
    session.push(delta("a", 1))
    (taken,) = await session.take(10)
    session.push(delta("a", 2))
    assert list(taken.token_ids) == [1]
    assert [list(each.token_ids) for each in await session.take(10)] == [[2]]


async def test_a_delta_never_outgrows_a_message_and_order_is_kept() -> None:
    session = GatewaySession()
    tokens = list(range(3 * MAX_DELTA_TOKENS + 5))
    for token in tokens:
        session.push(delta("a", token))
    deltas = await session.take(10)
    assert [len(each.token_ids) for each in deltas] == [MAX_DELTA_TOKENS] * 3 + [5]
    assert [token for each in deltas for token in each.token_ids] == tokens


async def test_one_event_takes_about_a_megabyte() -> None:
    session = GatewaySession()
    vector = [0.5] * (EVENT_BYTES // 4 // 3)
    for number in range(7):
        session.push(delta(str(number), embedding=vector))
    sizes = []
    while not session.quiet:
        sizes.append([each.sequence_id for each in await session.take(10)])
    assert sizes == [["0", "1", "2"], ["3", "4", "5"], ["6"]]


async def test_cancelled_news_is_dropped_so_that_the_id_may_be_used_again() -> None:
    session = GatewaySession()
    session.open |= {"a": "1", "b": "2"}
    session.push(delta("a", 1))
    session.push(delta("b", 2))
    session.forget("a")
    session.open["a"] = "3"
    session.push(delta("a", 9))
    assert [(each.sequence_id, list(each.token_ids)) for each in await session.take(10)] == [("b", [2]), ("a", [9])]


async def test_an_ended_id_starts_a_delta_of_its_own() -> None:
    session = GatewaySession()
    session.push(delta("a", 1, finish_reason=inference.FINISH_REASON_STOP))
    session.push(delta("a", 2))
    assert [list(each.token_ids) for each in await session.take(10)] == [[1], [2]]


async def test_take_waits_for_news_and_gives_up_empty_for_the_heartbeat() -> None:
    session = GatewaySession()
    assert await session.take(0.01) == []
    waiting = asyncio.create_task(session.take(60))
    await asyncio.sleep(0)
    session.push(delta("a", 1))
    assert [list(each.token_ids) for each in await waiting] == [[1]]


async def test_a_closed_session_wakes_its_reader() -> None:
    session = GatewaySession()
    waiting = asyncio.create_task(session.take(60))
    await asyncio.sleep(0)
    session.close()
    assert await waiting == []
    await session.room()


async def test_commands_wait_while_too_much_is_unread() -> None:
    session = GatewaySession()
    for number in range(MAX_UNREAD_DELTAS):
        session.fail(str(number), 3, "no")
    room = asyncio.create_task(session.room())
    await asyncio.sleep(0)
    assert not room.done()
    await session.take(10)
    await room


async def test_cancels_do_not_wait_for_a_gateway_that_does_not_read() -> None:
    session, done = GatewaySession(), list[str]()
    for number in range(MAX_UNREAD_DELTAS):
        session.fail(str(number), 3, "no")

    class Admission:
        def start(self, session: GatewaySession, start: pb.StartSequence, grains: object) -> None:
            done.append(f"start {start.sequence_id}")

        def cancel(self, session: GatewaySession, sequence_id: str) -> None:
            done.append(f"cancel {sequence_id}")

    async def commands() -> AsyncIterator[pb.SessionCommand]:
        for sequence_id in ("a", "b"):
            yield pb.SessionCommand(cancel=pb.CancelSequence(sequence_id=sequence_id))
        yield pb.SessionCommand(start=pb.StartSequence(sequence_id="c"))

    reading = asyncio.create_task(WorkerService(Mock(admission=Admission()))._read_commands(session, commands()))
    await asyncio.sleep(0)
    assert done == ["cancel a", "cancel b"]
    await session.take(10)
    await reading
    assert done == ["cancel a", "cancel b", "start c"]


async def test_starts_are_reported_in_order_and_refused_ones_on_the_way() -> None:
    """The first start that the engine has not counted holds back all behind it."""
    session, counted = GatewaySession(), set[int]()
    for number in range(1, 6):
        session.num_starts += 1
        if number not in (2, 5):  # these were refused before the engine heard of them
            session.queued(lambda number=number: number in counted)  # type: ignore[misc]
    reported = []
    for new in ((), (3,), (1,), (4,)):
        counted |= set(new)
        reported.append(session.reported_starts)
    assert reported == [0, 0, 3, 5]
