"""StepFit: what a decode step takes, as a function of batch and context."""

import random

import pytest

from polyfleet.wire.rates import Rates, StepFit

BASE, PER_SEQUENCE, PER_TOKEN = 0.02, 0.001, 2e-6


def step_seconds(sequences: int, tokens: int) -> float:
    return BASE + sequences * PER_SEQUENCE + tokens * PER_TOKEN


def predicted(fit: StepFit, sequences: int, tokens: int) -> float:
    base, per_sequence, per_token = fit.seconds
    return base + sequences * per_sequence + tokens * per_token


def taught(noise: float = 0.0, hiccup_every: int = 0, steps: int = 600) -> StepFit:
    draw, fit = random.Random(7), StepFit()
    for number in range(steps):
        sequences = draw.randint(1, 32)
        tokens = sequences * draw.randint(100, 2000)
        seconds = step_seconds(sequences, tokens) * (1 + draw.uniform(-noise, noise))
        if hiccup_every and number % hiccup_every == hiccup_every - 1:
            seconds += 2.0
        fit.add(sequences, tokens, seconds)
    return fit


@pytest.mark.parametrize(("sequences", "tokens"), [(1, 100), (8, 8000), (32, 64_000), (64, 64_000)])
def test_steps_never_seen_are_foretold_from_those_that_were(sequences: int, tokens: int) -> None:
    assert predicted(taught(noise=0.05), sequences, tokens) == pytest.approx(step_seconds(sequences, tokens), rel=0.15)


def test_a_hiccup_now_and_then_teaches_little() -> None:
    fit = taught(hiccup_every=40)
    assert predicted(fit, 16, 16_000) == pytest.approx(step_seconds(16, 16_000), rel=0.25)


def test_a_lasting_change_is_learned() -> None:
    fit = taught()
    for _ in range(400):
        fit.add(8, 8000, 10 * step_seconds(8, 8000))
    assert predicted(fit, 8, 8000) == pytest.approx(10 * step_seconds(8, 8000), rel=0.1)


def test_steps_that_were_all_alike_are_foretold_and_nothing_is_below_zero() -> None:
    fit = StepFit()
    for _ in range(50):
        fit.add(4, 1000, 0.03)
    assert predicted(fit, 4, 1000) == pytest.approx(0.03, rel=0.02)
    assert all(value >= 0 for value in fit.seconds)
    assert fit.seconds[0] > 0.02


def test_nothing_is_known_before_the_first_step_and_prompts_teach_nothing() -> None:
    rates = Rates()
    rates.add_step(0, 100, 1.0, lambda: 500)
    rates.add_step(3, 100, 1.0, lambda: 500)
    assert rates.decode_step.seconds == (0.0, 0.0, 0.0)
    rates.add_step(3, 0, 0.5, lambda: 500)
    assert sum(rates.decode_step.seconds) > 0
