"""Restart delays: 0.5 s, doubling to 30 s, from the start again after a stable minute."""

from polyfleet.scheduler.launcher.backoff import Backoff


def test_delays_double_up_to_the_limit() -> None:
    backoff = Backoff()
    assert [backoff.delay_after(0.1) for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]


def test_a_stable_minute_starts_over() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.delay_after(59.9)
    assert backoff.delay_after(60.0) == 0.5
    assert backoff.delay_after(1.0) == 1.0


def test_thousands_of_failures_stay_at_the_limit() -> None:
    backoff = Backoff(failures=5000)
    assert backoff.delay_after(0.0) == 30.0
