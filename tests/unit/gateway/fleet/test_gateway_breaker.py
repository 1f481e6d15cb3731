"""The circuit breaker: opens on failures in a row, tries now and then, closes on the first news."""

from polyfleet.gateway.fleet.breaker import FAILURES, PAUSE_SECONDS, TRIAL_SECONDS, CircuitBreaker


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def opened() -> tuple[CircuitBreaker, Clock]:
    clock = Clock()
    breaker = CircuitBreaker(clock)
    for _ in range(FAILURES):
        breaker.started()
        breaker.failed()
    return breaker, clock


def test_only_failures_in_a_row_open_it() -> None:
    breaker = CircuitBreaker(Clock())
    for _ in range(10):
        for _ in range(FAILURES - 1):
            breaker.failed()
        breaker.worked()
    assert (breaker.open, breaker.seconds) == (False, 0)
    for _ in range(FAILURES):
        breaker.failed()
    assert (breaker.open, breaker.seconds) == (True, PAUSE_SECONDS[0])


def test_what_was_under_way_when_it_opened_makes_it_no_worse() -> None:
    breaker, _ = opened()
    for _ in range(50):
        breaker.failed()
    assert breaker.seconds == PAUSE_SECONDS[0]


def test_one_sequence_tries_and_the_pause_grows_up_to_a_bound() -> None:
    breaker, clock = opened()
    pauses = []
    for _ in range(8):
        pauses.append(breaker.seconds)
        clock.now += breaker.seconds
        assert (breaker.open, breaker.seconds) == (True, 0)
        breaker.started()
        assert breaker.seconds == TRIAL_SECONDS  # the next one waits
        breaker.failed()
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]


def test_a_trial_that_says_nothing_yet_does_not_keep_others_out_for_long() -> None:
    breaker, clock = opened()
    clock.now += breaker.seconds
    breaker.started()
    clock.now += TRIAL_SECONDS
    assert breaker.seconds == 0


def test_any_news_closes_it_for_good() -> None:
    breaker, clock = opened()
    clock.now += breaker.seconds
    breaker.started()
    breaker.failed()
    breaker.worked()
    assert (breaker.open, breaker.seconds) == (False, 0)
    for _ in range(FAILURES):
        breaker.failed()
    assert breaker.seconds == PAUSE_SECONDS[0]
