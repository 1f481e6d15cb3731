"""Which frames may come for which stream."""

from typing import Any, cast

import pytest

from polyfleet.gateway.grpc.http2.frames import ConnectionProblem, Problem
from polyfleet.gateway.grpc.http2.streams import Streams


class Open:
    """A call."""

    def __init__(self, stream: int) -> None:
        self.stream, self.half_closed = stream, False


def begun(streams: Streams, stream: int, *, end: bool = False) -> Any:
    assert streams.begin(stream, end=end)
    call = cast(Any, Open(stream))
    streams.enter(call)
    return call


def problem(ask: Any, *args: Any, **more: Any) -> Problem:
    with pytest.raises(ConnectionProblem) as caught:
        ask(*args, **more)
    return caught.value.code


def test_an_open_call_is_found_until_it_ends() -> None:
    streams = Streams(2)
    first, third = begun(streams, 1), begun(streams, 5)
    assert streams.full
    assert streams.open(1, end=False) is streams.known(1) is first
    assert streams.open(5, end=True) is third
    streams.leave(1, ended=True)
    assert not streams.full
    assert streams.known(1) is None


@pytest.mark.parametrize("stream", [2, 4, 7, 9])
def test_streams_that_no_client_has_begun(stream: int) -> None:
    streams = Streams(2)
    begun(streams, 5)
    for ask in (streams.known, streams.given_up, lambda number: streams.open(number, end=False)):
        assert problem(ask, stream) is Problem.PROTOCOL_ERROR


def test_an_even_number_and_one_that_went_back() -> None:
    streams = Streams(2)
    assert problem(streams.begin, 2, end=False) is Problem.PROTOCOL_ERROR
    begun(streams, 5)
    assert not streams.begin(3, end=False)
    assert problem(streams.open, 3, end=False) is Problem.STREAM_CLOSED


def test_what_comes_late_for_a_call_that_ended_here_is_let_be_until_its_client_ends_it_too() -> None:
    streams = Streams(2)
    begun(streams, 1)
    streams.leave(1, ended=False)
    assert streams.open(1, end=False) is None
    assert streams.open(1, end=True) is None
    assert problem(streams.open, 1, end=False) is Problem.STREAM_CLOSED
    streams.begin(3, end=False)  # and is refused
    assert streams.open(3, end=False) is None
    assert streams.given_up(3) is None
    assert problem(streams.open, 3, end=False) is Problem.STREAM_CLOSED


def test_a_client_that_resets_its_call_sends_no_more() -> None:
    streams = Streams(2)
    call = begun(streams, 1)
    assert streams.given_up(1) is not None
    assert call.half_closed
    streams.leave(1, ended=True)
    assert problem(streams.open, 1, end=False) is Problem.STREAM_CLOSED
    assert streams.given_up(1) is streams.known(1) is None


def test_as_many_ends_are_kept_as_a_client_can_have_missed() -> None:
    streams = Streams(3)
    for stream in range(1, 1001, 2):
        begun(streams, stream)
        streams.leave(stream, ended=False)
    assert all(streams.open(stream, end=False) is None for stream in (995, 997, 999))
    assert problem(streams.open, 993, end=False) is Problem.STREAM_CLOSED
