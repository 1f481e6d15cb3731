"""A connection that is cut one way alone: what the worker says comes, what is sent to it does not arrive."""

from polyfleet.gateway.fleet.delivery import Delivery
from polyfleet.v1.worker_pb2 import SessionEvent


def ticked(delivery: Delivery, *read: int | None) -> list[int]:
    """The silence behind each tick, before which the worker said that it had read so many commands."""
    found = []
    for each in read:
        delivery.heard(SessionEvent() if each is None else SessionEvent(read_commands=each))
        delivery.tick()
        found.append(delivery.silence)
    return found


def sent(commands: int) -> Delivery:
    delivery = Delivery()
    for _ in range(commands):
        delivery.sent()
    return delivery


def test_commands_that_nobody_reads_are_silence() -> None:
    assert ticked(sent(3), 1, 1, 1) == [1, 2, 3]


def test_a_worker_that_reads_slowly_is_not_silent() -> None:
    assert ticked(sent(9), 1, 2, 2, 3, 3, 3, 9) == [1, 1, 2, 1, 2, 3, 0]


def test_without_anything_to_read_there_is_no_silence() -> None:
    delivery = sent(2)
    assert ticked(delivery, 2, 2, 2) == [0, 0, 0]
    delivery.sent()
    assert ticked(delivery, 2, 2) == [1, 2]


def test_a_worker_that_does_not_tell_is_never_silent() -> None:
    assert ticked(sent(3), None, None, None) == [0, 0, 0]
