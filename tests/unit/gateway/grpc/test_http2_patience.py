"""How much a peer may send that asks for nothing."""

import pytest

from polyfleet.gateway.grpc.http2.frames import ConnectionProblem, Problem
from polyfleet.gateway.grpc.http2.patience import IDLE_FRAMES_PER_SECOND, MAX_IDLE_FRAMES, RESET_WEIGHT, Patience


def test_a_flood_ends() -> None:
    patience = Patience(0.0)
    for _ in range(MAX_IDLE_FRAMES):
        patience.spend(1, 0.0)
    with pytest.raises(ConnectionProblem) as caught:
        patience.spend(1, 0.0)
    assert caught.value.code is Problem.ENHANCE_YOUR_CALM


def test_calls_that_are_given_up_at_a_bearable_rate_never_end_it() -> None:
    patience, rate = Patience(0.0), IDLE_FRAMES_PER_SECOND / RESET_WEIGHT
    for number in range(100_000):
        patience.spend(RESET_WEIGHT, number / rate)


def test_an_answer_restores_it() -> None:
    patience = Patience(0.0)
    for _ in range(3):
        patience.spend(MAX_IDLE_FRAMES, 0.0)
        patience.restore()


def test_nothing_is_saved_up() -> None:
    patience = Patience(0.0)
    patience.spend(1, 1000.0)
    with pytest.raises(ConnectionProblem):
        patience.spend(MAX_IDLE_FRAMES + 1, 2000.0)
