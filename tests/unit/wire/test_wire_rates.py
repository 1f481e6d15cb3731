"""Rates: exponentially weighted means of tokens per second."""

import pytest

from polyfleet.wire.rates import MovingRate, Rates


def test_unknown_is_zero() -> None:
    assert Rates().prefill.per_second == 0.0
    assert Rates().decode.per_second == 0.0


def test_a_steady_rate_is_found_whatever_the_sizes() -> None:
    rate = MovingRate(half_life=10)
    for tokens in (1, 7, 100, 3):
        rate.add(tokens, tokens / 50)
    assert rate.per_second == pytest.approx(50)


def test_the_past_counts_half_after_a_half_life() -> None:
    rate = MovingRate(half_life=10)
    rate.add(10, 1.0)
    rate.add(10, 3.0)
    assert rate.per_second == pytest.approx((5 + 10) / (0.5 + 3.0))


def test_a_change_of_speed_is_followed() -> None:
    rates = Rates()
    for _ in range(500):
        rates.add_step(4, 0, 0.1)
    assert rates.decode.per_second == pytest.approx(10)
    for _ in range(500):
        rates.add_step(4, 0, 0.02)
    assert rates.decode.per_second == pytest.approx(50, rel=0.05)
    assert rates.prefill.per_second == 0.0


def test_a_mixed_step_is_shared_by_rows() -> None:
    rates = Rates()
    rates.add_step(num_decodes=10, num_prefill_tokens=30, seconds=0.4)
    assert rates.prefill.per_second == pytest.approx(30 / 0.3)
    assert rates.decode.per_second == pytest.approx(1 / 0.4)


def test_few_prompt_tokens_say_little_of_how_long_many_take() -> None:
    rates = Rates()
    rates.add_step(0, 4, 0.01)
    assert rates.prefill.per_second == pytest.approx(400)
    rates.add_step(0, 1000, 0.05)
    for _ in range(100):
        rates.add_step(0, 4, 0.01)
    assert rates.prefill.per_second == pytest.approx(20_000)


def test_64_prompt_tokens_are_few_and_65_are_many() -> None:
    rates = Rates()
    rates.add_step(0, 65, 0.065)
    rates.add_step(0, 64, 0.001)
    assert rates.prefill.per_second == pytest.approx(1000)
