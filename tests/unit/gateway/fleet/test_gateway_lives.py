"""Of two schedulers that live at once, the one that began later is listened to."""

from polyfleet.gateway.fleet.lives import FORGOTTEN_SECONDS, Lives


def test_one_that_was_replaced_does_not_count_any_more() -> None:
    lives = Lives()
    assert lives.admits(7, 0.0)
    assert lives.admits(9, 1.0)
    assert not lives.admits(7, 2.0)
    assert lives.admits(9, 3.0)


def test_a_lower_number_counts_once_the_higher_one_is_silent() -> None:
    lives = Lives()
    assert lives.admits(9, 0.0)
    assert not lives.admits(3, FORGOTTEN_SECONDS - 0.1)
    assert lives.admits(3, FORGOTTEN_SECONDS)
    assert lives.admits(3, FORGOTTEN_SECONDS + 1)


def test_a_scheduler_without_numbers_always_counts() -> None:
    lives = Lives()
    assert lives.admits(9, 0.0)
    assert lives.admits(0, 1.0)
    assert not lives.admits(8, 2.0)
