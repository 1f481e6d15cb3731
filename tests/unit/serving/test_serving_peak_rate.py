"""The peak of a rate: over windows of a second, never falling, not raised by a burst within a window."""

from polyfleet.serving.peak_rate import PeakRate


def peak_of(*seen: tuple[int, float]) -> float:
    peak = PeakRate()
    for count, now in seen:
        peak.see(count, now)
    return peak.per_second


def test_nothing_is_claimed_before_a_window_has_passed() -> None:
    assert peak_of() == peak_of((500, 10.0)) == peak_of((500, 10.0), (600, 10.5)) == 0


def test_the_best_window_counts() -> None:
    assert peak_of((100, 10.0), (140, 11.0), (150, 12.0)) == 40
    assert peak_of((0, 10.0), (10, 11.0), (80, 13.0), (90, 14.0)) == 35


def test_a_burst_counts_over_its_whole_window() -> None:
    assert peak_of((0, 10.0), (100, 10.1), (100, 10.9), (100, 12.0)) == 50
