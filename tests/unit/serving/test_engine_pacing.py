"""An idle engine looks at its books once, after a second of quiet, whatever wakes it meanwhile."""

import os
import threading

from hypothesis import given
from hypothesis import strategies as st
from tests.support import fake_engine
from tests.unit.serving.test_serving_engine_process import engine_at_work, request

from polyfleet.serving.engine_pacing import IDLE_CHECK_SECONDS, Books
from polyfleet.wire.options import EngineOptions


class Woken(fake_engine.FakeEngine):
    """One whose alarm rings now and then, for nothing."""

    def __init__(self, rung: int) -> None:
        super().__init__(fake_engine.Script(canary=0.0), EngineOptions())
        self.alarm = self._rung = rung
        self.times, self.seen, self.checks = 0, threading.Event(), 0

    def woken(self) -> None:
        self.times += len(os.read(self._rung, 100))
        self.seen.set()

    def check(self) -> None:
        self.checks += 1


def test_what_wakes_an_idle_engine_for_nothing_is_seen_once_and_no_books_are_looked_at() -> None:
    rung, bell = os.pipe()
    engine = Woken(rung)
    with engine_at_work(lambda *_: engine) as (peer, _):
        peer.load()
        peer.send(request("a", tokens=1))
        peer.news()
        for number in range(1, 6):
            engine.seen.clear()
            os.write(bell, b"\0")
            assert engine.seen.wait(10)
            assert engine.times == number
        assert engine.checks == 0
    os.close(rung)
    os.close(bell)


@given(waits=st.lists(st.floats(0.0, 1.5), max_size=8))
def test_books_are_looked_at_once_after_a_second_of_quiet(waits: list[float]) -> None:
    now = 0.0
    books = Books(lambda: now)
    assert not books.due
    assert books.seconds is None
    for wait in waits:
        books.opened()
        assert not books.due
        now += wait
        assert books.due == (wait >= IDLE_CHECK_SECONDS)
    books.checked()
    assert books.seconds is None
