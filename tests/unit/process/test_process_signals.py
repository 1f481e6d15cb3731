"""Which signals stop a process."""

import signal
from collections.abc import Iterator

import pytest

from polyfleet.process.signals import STOPPING, end_at_signals, ignore_hangups, stopping


@pytest.fixture(autouse=True)
def handlers_come_back() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in STOPPING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_hangup_stops_unless_nohup_has_it_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    assert stopping() == (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    ignore_hangups()
    assert stopping() == (signal.SIGTERM, signal.SIGINT)
    end_at_signals()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
