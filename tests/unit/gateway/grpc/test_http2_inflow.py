"""How much a client may send, over all its calls."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfleet.gateway.grpc.http2.frames import DEFAULT_WINDOW, ConnectionProblem
from polyfleet.gateway.grpc.http2.inflow import CONNECTION_WINDOW, Inflow


def test_a_stranger_gets_back_what_nobody_holds_any_more() -> None:
    inflow = Inflow()
    inflow.came(DEFAULT_WINDOW)
    assert inflow.grant() == 0
    inflow.took(DEFAULT_WINDOW // 2)
    assert (inflow.grant(), inflow.grant()) == (DEFAULT_WINDOW // 2, 0)
    with pytest.raises(ConnectionProblem):
        inflow.came(DEFAULT_WINDOW // 2 + 1)


def test_whom_a_call_was_let_in_for_gets_it_back_as_it_comes() -> None:
    inflow = Inflow()
    inflow.came(1000)
    inflow.trust()
    assert inflow.grant() == CONNECTION_WINDOW - DEFAULT_WINDOW + 1000
    for _ in range(10):
        inflow.came(CONNECTION_WINDOW // 2)
        inflow.took(CONNECTION_WINDOW // 2)  # says nothing new
        assert inflow.grant() == CONNECTION_WINDOW // 2


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30_000), st.integers(0, 30_000))), st.integers(0, 40))
def test_no_more_is_held_than_the_window_and_a_client_that_keeps_to_it_is_never_stuck(
    moves: list[tuple[int, int]], trusted_at: int
) -> None:
    inflow, window, held = Inflow(), DEFAULT_WINDOW, 0
    for turn, (sent, taken) in enumerate(moves):
        if turn == trusted_at:
            inflow.trust()
            window += inflow.grant()
        inflow.came(sent := min(sent, window))
        held += sent
        inflow.took(taken := min(taken, held))
        held -= taken
        window += inflow.grant() - sent
        most = DEFAULT_WINDOW if turn < trusted_at else CONNECTION_WINDOW
        assert window + (held if turn < trusted_at else 0) <= most
        assert window + held >= most // 2
