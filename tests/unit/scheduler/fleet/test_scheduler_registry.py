"""The registry: what registrations, reports, silence and launchers make of a worker."""

from dataclasses import replace

import pytest

from polyfleet.scheduler.config import LaunchConfig
from polyfleet.scheduler.fleet.registry import MAX_WORKERS, FullError, Registry, TakenError
from polyfleet.scheduler.launcher.launch import LauncherReport, LaunchSpec, Phase
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.v1 import worker_pb2

READY = pb.WorkerStatus(state=pb.WORKER_STATE_READY)
LOAD = worker_pb2.LoadRequest(deployment="d", model_name="m", source="/m").SerializeToString()
SPEC = LaunchSpec("w-1", "cpu", LOAD, LaunchConfig(), "127.0.0.1:1", "/state")


def info(worker_id: str = "w-1", pid: int = 10) -> pb.WorkerInfo:
    return pb.WorkerInfo(worker_id=worker_id, pid=pid, address="127.0.0.1:5", deployment="d")


def launcher(phase: Phase, pid: int = 10, reason: str = "") -> LauncherReport:
    return LauncherReport(SPEC, phase, pid=pid, reason=reason)


@pytest.fixture
def registry() -> Registry:
    return Registry("epoch")


def shown(registry: Registry, worker_id: str = "w-1") -> tuple[str, str]:
    for worker in registry.snapshot().workers:
        if worker.info.worker_id == worker_id:
            return pb.WorkerState.Name(worker.status.state).removeprefix("WORKER_STATE_"), worker.status.reason
    return "absent", ""


def sweep(registry: Registry, start: float, end: float) -> None:
    """As the controller does while time passes from `start` to `end`."""
    for quarter in range(int(start * 4), int(end * 4) + 1):
        registry.sweep(now=quarter / 4)


def test_a_worker_is_starting_until_it_reports(registry: Registry) -> None:
    registry.register(info(), stream=1, now=0.0)
    assert shown(registry) == ("STARTING", "")
    registry.report("w-1", READY, stream=1, now=0.1)
    assert shown(registry) == ("READY", "")


def test_the_version_grows_with_visible_changes_only(registry: Registry) -> None:
    registry.register(info(), stream=1, now=0.0)
    registry.report("w-1", READY, stream=1, now=0.1)
    version = registry.revision.number
    idle = pb.WorkerStatus(state=pb.WORKER_STATE_READY, step=9, counters=pb.EngineCounters(finished=3))
    registry.report("w-1", idle, stream=1, now=0.6)
    assert registry.revision.number == version
    registry.report("w-1", pb.WorkerStatus(state=pb.WORKER_STATE_READY, running_sequences=1), stream=1, now=0.7)
    assert registry.revision.number == version + 1
    registry.set_deployments([pb.ModelDeployment(name="d")])
    registry.set_deployments([pb.ModelDeployment(name="d")])
    assert registry.revision.number == version + 2


def test_a_report_that_can_not_be_true_is_told_until_there_is_sense_again(registry: Registry) -> None:
    model = pb.ModelInfo(name="m", num_blocks=8)
    registry.register(pb.WorkerInfo(worker_id="w-1", model=model), stream=1, now=0.0)

    def told(*, free: int, step: int, seconds: float) -> str:
        counters, ready = pb.EngineCounters(step_seconds=seconds), pb.WORKER_STATE_READY
        status = pb.WorkerStatus(state=ready, free_blocks=free, step=step, counters=counters)
        registry.report("w-1", status, stream=1, now=0.1)
        return registry.snapshot().workers[0].quarantine

    assert told(free=8, step=5, seconds=3.0) == ""
    assert told(free=9, step=6, seconds=4.0) == "free blocks: 9 of 8"
    assert told(free=8, step=7, seconds=3.0) == "seconds in steps: 3, after 4 before"
    assert told(free=8, step=8, seconds=3.5) == "seconds in steps: 3.5, after 4 before"
    assert told(free=8, step=1, seconds=0.5) == ""  # a new engine


def test_rates_that_are_about_the_same_are_no_visible_change(registry: Registry) -> None:
    registry.register(info(), stream=1, now=0.0)
    rates = {"decode_tokens_per_second": 41.21, "decode_step_seconds": 0.02401, "prefill_tokens_per_second": 999.0}

    def report(now: float) -> None:
        status = pb.WorkerStatus(state=pb.WORKER_STATE_READY, **rates)  # type: ignore[arg-type]
        registry.report("w-1", status, stream=1, now=now)

    report(0.1)
    version = registry.revision.number
    rates |= {"decode_tokens_per_second": 41.29, "decode_step_seconds": 0.02433}
    report(0.6)
    assert registry.revision.number == version
    rates["prefill_tokens_per_second"] = 1100.0
    report(1.1)
    assert registry.revision.number == version + 1


def test_a_snapshot_carries_epoch_version_workers_by_id_and_deployments(registry: Registry) -> None:
    for worker_id in ("w-2", "w-1"):
        registry.register(info(worker_id), stream=1, now=0.0)
    registry.set_deployments([pb.ModelDeployment(name="d")])
    snapshot = registry.snapshot()
    assert (snapshot.scheduler_epoch, snapshot.version) == ("epoch", 3)
    assert [worker.info.worker_id for worker in snapshot.workers] == ["w-1", "w-2"]
    assert [deployment.name for deployment in snapshot.deployments] == ["d"]
    assert registry.snapshot() is snapshot


def test_silence_makes_a_worker_lost_and_a_report_brings_it_back(registry: Registry) -> None:
    registry.register(info(), stream=1, now=0.0)
    registry.report("w-1", READY, stream=1, now=1.0)
    sweep(registry, 1.0, 4.0)
    assert shown(registry)[0] == "READY"
    sweep(registry, 4.0, 4.5)
    assert shown(registry) == ("LOST", "no report for 3 s")
    registry.report("w-1", READY, stream=1, now=5.0)
    assert shown(registry)[0] == "READY"


def test_silence_while_the_scheduler_itself_stood_still_does_not_count(registry: Registry) -> None:
    registry.register(info(), stream=1, now=0.0)
    sweep(registry, 0.0, 1.0)
    sweep(registry, 50.0, 51.0)
    assert shown(registry)[0] == "STARTING"
    sweep(registry, 51.25, 54.0)
    assert shown(registry)[0] == "LOST"


def test_a_lost_worker_is_forgotten_after_a_minute_unless_a_launcher_has_it(registry: Registry) -> None:
    registry.register(info(), stream=1, now=0.0)
    sweep(registry, 0.0, 60.0)
    assert shown(registry)[0] == "LOST"
    registry.observe([launcher(Phase.WATCHING)])
    sweep(registry, 60.0, 600.0)
    assert shown(registry)[0] == "LOST"
    registry.observe([])
    sweep(registry, 600.0, 600.5)
    assert shown(registry)[0] == "absent"


def test_an_old_stream_speaks_for_nobody(registry: Registry) -> None:
    registry.register(info(), stream=1, now=0.0)
    registry.register(info(pid=11), stream=2, now=4.0)  # the first one has been silent for too long
    registry.report("w-1", READY, stream=1, now=4.1)
    assert shown(registry)[0] == "STARTING"
    registry.closed("w-1", stream=1)
    registry.report("w-1", READY, stream=2, now=4.2)
    assert shown(registry)[0] == "READY"


@pytest.mark.parametrize("pid", [10, 11])
def test_an_id_that_reports_is_nobody_elses(registry: Registry, pid: int) -> None:
    registry.register(info(), stream=1, now=0.0)
    registry.report("w-1", READY, stream=1, now=2.0)
    with pytest.raises(TakenError, match="'w-1' is taken: process 10 on an unnamed host reports under it"):
        registry.register(info(pid=pid), stream=2, now=3.0)
    registry.closed("w-1", stream=2)  # the stream that was refused
    registry.report("w-1", pb.WorkerStatus(state=pb.WORKER_STATE_UNHEALTHY), stream=2, now=3.1)
    assert shown(registry)[0] == "READY"
    registry.closed("w-1", stream=1)
    registry.register(info(pid=pid), stream=3, now=3.2)  # its own stream has ended: it dials again
    assert shown(registry)[0] == ("READY" if pid == 10 else "STARTING")


def test_a_launched_id_belongs_to_the_process_that_its_launcher_started(registry: Registry) -> None:
    registry.register(info(pid=66), stream=1, now=0.0)  # before the launcher said which process it started
    registry.observe([launcher(Phase.WATCHING, pid=10)])
    registry.register(info(pid=10), stream=2, now=0.1)
    with pytest.raises(TakenError, match="its launcher runs it as process 10"):
        registry.register(info(pid=66), stream=3, now=60.0)
    registry.report("w-1", READY, stream=2, now=60.1)
    assert shown(registry)[0] == "READY"


def test_a_model_counts_once_its_worker_was_ready_with_it(registry: Registry) -> None:
    def model() -> str:
        return str(registry.snapshot().workers[0].info.model.name)

    def serving(name: str) -> pb.WorkerInfo:
        return pb.WorkerInfo(worker_id="w-1", pid=10, model=pb.ModelInfo(name=name))

    registry.register(serving("m"), stream=1, now=0.0)
    registry.report("w-1", pb.WorkerStatus(state=pb.WORKER_STATE_LOADING), stream=1, now=0.1)
    assert model() == ""
    registry.report("w-1", READY, stream=1, now=0.2)
    assert model() == "m"
    registry.report("w-1", pb.WorkerStatus(state=pb.WORKER_STATE_UNHEALTHY), stream=1, now=0.3)
    assert model() == "m"
    registry.register(serving("other"), stream=1, now=0.4)
    assert model() == ""


def test_another_model_is_told_once_its_worker_is_ready_with_it_though_it_was_ready_before(registry: Registry) -> None:
    """Whoever saw the worker without a model hears of it, however little the report says that is new."""

    def model() -> str:
        return registry.snapshot().workers[0].info.model.name

    registry.register(pb.WorkerInfo(worker_id="w-1", pid=10, model=pb.ModelInfo(name="m")), stream=1, now=0.0)
    registry.report("w-1", READY, stream=1, now=0.1)
    assert model() == "m"
    registry.register(pb.WorkerInfo(worker_id="w-1", pid=10, model=pb.ModelInfo(name="n")), stream=1, now=0.2)
    assert model() == ""
    registry.report("w-1", READY, stream=1, now=0.3)
    assert model() == "n"


def test_a_model_stays_while_its_adapters_change(registry: Registry) -> None:
    registry.register(pb.WorkerInfo(worker_id="w-1", pid=10, model=pb.ModelInfo(name="m")), stream=1, now=0.0)
    registry.report("w-1", READY, stream=1, now=0.1)
    for adapters in ([pb.Adapter(name="a")], []):
        model = pb.ModelInfo(name="m", adapters=adapters)
        registry.register(pb.WorkerInfo(worker_id="w-1", pid=10, model=model), stream=1, now=0.2)
        assert registry.snapshot().workers[0].info.model == model


def test_a_fleet_has_room_for_so_many_and_says_the_same_thing_once(registry: Registry) -> None:
    for number in range(MAX_WORKERS):
        registry.register(info(f"w-{number}"), stream=number, now=0.0)
    with pytest.raises(FullError, match="4096 workers"):
        registry.register(info("w-more"), stream=MAX_WORKERS, now=0.0)
    version = registry.revision.number
    registry.register(info("w-0"), stream=0, now=0.1)
    assert registry.revision.number == version


def test_a_draining_worker_has_gone_when_its_stream_ends_and_a_ready_one_has_not(registry: Registry) -> None:
    registry.register(info("w-1"), stream=1, now=0.0)
    registry.register(info("w-2"), stream=2, now=0.0)
    registry.report("w-1", pb.WorkerStatus(state=pb.WORKER_STATE_DRAINING), stream=1, now=0.1)
    registry.report("w-2", READY, stream=2, now=0.1)
    registry.closed("w-1", stream=1)
    registry.closed("w-2", stream=2)
    assert shown(registry, "w-1")[0] == "absent"
    assert shown(registry, "w-2")[0] == "READY"


def test_a_launched_worker_is_starting_before_it_registers(registry: Registry) -> None:
    registry.observe([launcher(Phase.STARTING, pid=0)])
    assert shown(registry) == ("STARTING", "")
    worker = registry.snapshot().workers[0]
    assert (worker.info.deployment, worker.info.accelerator) == ("d", "cpu")
    sweep(registry, 0.0, 100.0)
    assert shown(registry)[0] == "STARTING"
    registry.observe([])
    assert shown(registry)[0] == "absent"


def test_a_crash_shows_at_once_with_the_launchers_reason(registry: Registry) -> None:
    registry.register(info(pid=10), stream=1, now=0.0)
    registry.report("w-1", READY, stream=1, now=0.1)
    registry.observe([launcher(Phase.WATCHING, pid=10)])
    assert shown(registry)[0] == "READY"
    registry.observe([launcher(Phase.FAILED, pid=10, reason="killed")])
    assert shown(registry) == ("UNHEALTHY", "killed")
    registry.observe([launcher(Phase.WATCHING, pid=11)])
    assert shown(registry)[0] == "STARTING"
    registry.register(info(pid=11), stream=2, now=1.0)
    registry.report("w-1", READY, stream=2, now=1.1)
    assert shown(registry)[0] == "READY"


def test_the_workers_own_reason_is_better_than_the_launchers(registry: Registry) -> None:
    registry.register(info(pid=10), stream=1, now=0.0)
    own = pb.WorkerStatus(state=pb.WORKER_STATE_UNHEALTHY, reason="m.gguf is truncated")
    registry.report("w-1", own, stream=1, now=0.1)
    registry.observe([launcher(Phase.FAILED, pid=10, reason="The worker ended with status 3.")])
    assert shown(registry) == ("UNHEALTHY", "m.gguf is truncated")


def test_late_news_of_an_earlier_process_does_not_touch_its_successor(registry: Registry) -> None:
    registry.register(info(pid=11), stream=2, now=0.0)
    registry.report("w-1", READY, stream=2, now=0.1)
    registry.observe([launcher(Phase.FAILED, pid=10, reason="killed")])
    assert shown(registry) == ("READY", "")


def test_an_attached_worker_that_could_not_load_shows_why_and_a_serving_one_speaks_for_itself(
    registry: Registry,
) -> None:
    attached = replace(launcher(Phase.FAILED, pid=0, reason="no such file"), worker_id="w-7")
    registry.register(info("w-7", pid=5), stream=1, now=0.0)
    registry.report("w-7", pb.WorkerStatus(state=pb.WORKER_STATE_STARTING), stream=1, now=0.1)
    registry.observe([attached])
    assert shown(registry, "w-7") == ("UNHEALTHY", "no such file")
    registry.report("w-7", READY, stream=1, now=0.2)
    assert shown(registry, "w-7")[0] == "READY"


def test_a_worker_that_its_launcher_saw_leaving_is_forgotten(registry: Registry) -> None:
    registry.register(info(), stream=1, now=0.0)
    registry.report("w-1", pb.WorkerStatus(state=pb.WORKER_STATE_DRAINING), stream=1, now=0.1)
    registry.observe([launcher(Phase.WATCHING)])
    registry.closed("w-1", stream=1)
    assert shown(registry)[0] == "DRAINING"
    registry.observe([launcher(Phase.LEFT)])
    assert shown(registry)[0] == "absent"
