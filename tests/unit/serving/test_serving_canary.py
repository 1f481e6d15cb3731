"""When the engine process runs its canary, and what a worker's lifecycle makes of verdicts."""

import pytest

from polyfleet.engine.canary.canary import CANARY_ID, Canary, CanaryReference, CanaryResult
from polyfleet.process.revision import Revision
from polyfleet.serving.health.canary_rounds import PATIENCE_SECONDS, RETRY_SECONDS, CanaryRounds
from polyfleet.serving.health.lifecycle import Lifecycle
from polyfleet.v1 import fleet_pb2 as fleet
from polyfleet.wire.answers import FinishReason, SampledToken, SequenceUpdate
from polyfleet.wire.requests import SequenceRequest

REFERENCE = CanaryReference((1, 2, 3) * 4, (7, 8), (5.0, 5.0))
RIGHT, WRONG = (7, 8), (7, 9)


class Line:
    """An engine's queue that only remembers."""

    canary: Canary | None = None

    def __init__(self) -> None:
        self.requests: list[SequenceRequest] = []
        self.cancelled: list[str] = []

    def add(self, request: SequenceRequest) -> None:
        self.requests.append(request)

    def cancel(self, sequence_id: str) -> None:
        self.cancelled.append(sequence_id)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Rig:
    """Rounds with a clock and a queue that the test moves."""

    def __init__(self, interval: float, reference: CanaryReference | None = REFERENCE) -> None:
        self.clock, self.line = Clock(), Line()
        self.rounds = CanaryRounds(Canary(REFERENCE.prompt_ids, reference), interval, self.clock)

    def advance(self, seconds: float) -> int:
        """Let time pass; how often the canary has been queued so far."""
        self.clock.now += seconds
        self.rounds.advance(self.line)
        return len(self.line.requests)

    def answer(self, *token_ids: int, error: str = "") -> CanaryResult:
        for token_id in token_ids:
            assert self.rounds.take([SequenceUpdate(CANARY_ID, (SampledToken(token_id),))]) == []
            assert self.rounds.verdict() is None
        end = SequenceUpdate(CANARY_ID, (), None if error else FinishReason.LENGTH, error=error)
        assert self.rounds.take([end]) == []
        verdict = self.rounds.verdict()
        assert verdict is not None
        assert self.rounds.verdict() is None, "a verdict is told once"
        return verdict.result


def test_an_answer_that_comes_later_is_looked_at_in_the_next_round() -> None:
    rig = Rig(0.0)
    rig.line.canary = Canary((1, 2, 3), awaited=True)
    rig.advance(0)
    assert rig.answer(*RIGHT) is CanaryResult.NO_REFERENCE
    assert rig.advance(RETRY_SECONDS - 1) == 1
    rig.line.canary = Canary(REFERENCE.prompt_ids, REFERENCE)
    assert rig.advance(1) == 2
    assert rig.line.requests[1].prompt_ids == REFERENCE.prompt_ids
    assert rig.answer(*(token + 1 for token in RIGHT)) is CanaryResult.WRONG
    assert rig.advance(RETRY_SECONDS) == 3
    assert rig.answer(*RIGHT) is CanaryResult.RIGHT
    assert rig.advance(10 * RETRY_SECONDS) == 3, "no interval: it was right once"


def test_it_runs_at_once_and_then_at_intervals_behind_everybody() -> None:
    rig = Rig(30.0)
    assert rig.rounds.until_next(None) == 0.0
    assert rig.advance(0) == 1
    assert rig.line.requests[0].priority < 0
    assert rig.rounds.until_next(None) is None, "one run at a time"
    assert rig.answer(*RIGHT) is CanaryResult.RIGHT
    assert rig.rounds.until_next(None) == 30.0
    assert rig.rounds.until_next(1.0) == 1.0
    assert rig.advance(29.0) == 1
    assert rig.advance(1.0) == 2
    assert rig.answer(*WRONG) is CanaryResult.WRONG
    assert rig.advance(30.0) == 3
    assert rig.answer(7, error="not finite") is CanaryResult.FAILED


def test_without_an_interval_it_runs_until_it_was_right_once() -> None:
    rig = Rig(0.0)
    rig.advance(0)
    rig.answer(*WRONG)
    assert rig.advance(RETRY_SECONDS - 1) == 1
    assert rig.advance(1) == 2
    rig.answer(*RIGHT)
    assert rig.rounds.until_next(None) is None
    assert rig.advance(1e9) == 2


def test_without_a_reference_it_still_shows_that_the_engine_computes() -> None:
    rig = Rig(0.0, None)
    rig.advance(0)
    assert rig.answer(*WRONG) is CanaryResult.NO_REFERENCE
    assert rig.advance(1e9) == 1


def test_one_that_waits_too_long_goes_to_the_front() -> None:
    rig = Rig(30.0)
    rig.advance(0)
    assert rig.advance(PATIENCE_SECONDS - 0.1) == 1
    assert rig.advance(0.1) == 2
    assert rig.line.cancelled == [CANARY_ID]
    assert rig.line.requests[1].priority > 0
    assert rig.advance(100.0) == 2, "it is hurried once"
    assert rig.answer(*RIGHT) is CanaryResult.RIGHT


def test_one_that_has_begun_is_let_alone() -> None:
    rig = Rig(30.0)
    rig.advance(0)
    rig.rounds.take([SequenceUpdate(CANARY_ID, (SampledToken(7),))])
    assert rig.advance(PATIENCE_SECONDS + 1) == 1


def test_other_sequences_news_passes_untouched() -> None:
    rig = Rig(30.0)
    others = [SequenceUpdate("1:a", (SampledToken(5),)), SequenceUpdate("2:b", error="bad")]
    assert rig.rounds.take(others) == others
    rig.advance(0)
    assert rig.rounds.take([others[0], SequenceUpdate(CANARY_ID), others[1]]) == others
    nothing = CanaryRounds(None, 30.0)
    assert nothing.take(others) == others
    assert nothing.until_next(None) is None


READY, UNHEALTHY, DRAINING = (
    fleet.WORKER_STATE_READY,
    fleet.WORKER_STATE_UNHEALTHY,
    fleet.WORKER_STATE_DRAINING,
)


@pytest.fixture
def lifecycle() -> Lifecycle:
    return Lifecycle(Revision())


def test_a_trouble_makes_a_ready_worker_unhealthy_until_it_is_over(lifecycle: Lifecycle) -> None:
    lifecycle.settle()
    assert (lifecycle.state, lifecycle.reason) == (READY, "")
    assert lifecycle.trouble("canary", "It answers wrongly.")
    assert not lifecycle.trouble("canary", "It answers wrongly.")
    assert (lifecycle.state, lifecycle.reason) == (UNHEALTHY, "It answers wrongly.")
    lifecycle.trouble("device", "It is too hot.")
    assert lifecycle.reason == "It answers wrongly. It is too hot."
    lifecycle.recover("canary")
    assert (lifecycle.state, lifecycle.reason) == (UNHEALTHY, "It is too hot.")
    lifecycle.recover("device")
    assert (lifecycle.state, lifecycle.reason) == (READY, "")
    assert not lifecycle.failed


def test_a_trouble_before_the_model_is_loaded_shows_then(lifecycle: Lifecycle) -> None:
    lifecycle.enter(fleet.WORKER_STATE_LOADING)
    lifecycle.trouble("canary", "It answers wrongly.")
    assert lifecycle.state == fleet.WORKER_STATE_LOADING
    lifecycle.settle()
    assert lifecycle.state == UNHEALTHY


def test_draining_and_failure_are_final(lifecycle: Lifecycle) -> None:
    lifecycle.settle()
    lifecycle.enter(DRAINING)
    lifecycle.trouble("device", "hot")
    lifecycle.recover("device")
    assert lifecycle.state == DRAINING
    lifecycle.fail("The engine is gone.")
    lifecycle.trouble("device", "hot")
    lifecycle.recover("device")
    assert (lifecycle.state, lifecycle.reason, lifecycle.failed) == (UNHEALTHY, "The engine is gone.", True)


def test_a_ready_worker_may_have_a_reservation(lifecycle: Lifecycle) -> None:
    lifecycle.reservation = "canary: no reference"
    lifecycle.settle()
    assert (lifecycle.state, lifecycle.reason) == (READY, "canary: no reference")
