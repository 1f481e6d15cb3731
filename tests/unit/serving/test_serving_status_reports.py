"""When an engine's status travels to its worker."""

from tests.support import fake_engine

from polyfleet.serving.engine_pacing import STATUS_SECONDS, Reports
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import SequenceRequest


def test_a_status_travels_with_what_commands_came_to_and_else_now_and_then() -> None:
    seconds = [100.0]
    engine = fake_engine.load("fake:canary=0", EngineOptions(), lambda progress, phase: None)
    reports = Reports(lambda: seconds[0])
    engine.add(SequenceRequest("a", (1, 2), max_tokens=10))
    assert reports.status(engine, commanded=True)
    assert reports.status(engine, commanded=False) is None
    assert reports.status(engine, commanded=True)
    seconds[0] += 1.01 * STATUS_SECONDS
    assert reports.status(engine, commanded=False)
    assert reports.status(engine, commanded=False) is None
    engine.cancel("a")
    assert reports.status(engine, commanded=False), "nobody would hear how it ended"
