"""The scheduler on a real local Ray: workers come up, and survive kill -9 of themselves, launchers and scheduler."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
import yaml
from msgspec import to_builtins
from msgspec.structs import replace
from tests.support.fake_interpreter import fake_interpreter
from tests.support.local_fleet import READY, FleetWatcher, LocalFleet, worker_pids
from tests.support.ports import free_address
from tests.support.tiny_models import TinyShape, write_gguf
from tests.support.tiny_tokenizers import byte_level_metadata

from polyfleet.process.config import ConfigError
from polyfleet.scheduler.cluster.local import LocalScheduler
from polyfleet.scheduler.config import LaunchConfig, SchedulerConfig
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.v1 import fleet_pb2_grpc

ATTACHED = free_address()
FAKE = "hygon"  # the pool of workers with the fake engine, which asks nothing of a device
POOLS = {FAKE: 3, "xpu": 1, "rocm": 1, "cpu": 2}


def configured(state_dir: Path, **more: Any) -> SchedulerConfig:
    """On ports of its own."""
    return SchedulerConfig(free_address(), free_address(), state_dir=str(state_dir), **more)


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
        FAKE: LaunchConfig(interpreter=fake_interpreter(folder)),
        "xpu": LaunchConfig(interpreter=fake_interpreter(other, other_python)),
        "rocm": LaunchConfig(mode="attach", address=ATTACHED),
    }
    config = configured(folder / "state", accelerators=pools)
    with LocalFleet(config, POOLS) as running:
        yield running
        running.deploy("last")
        (worker,) = running.until_ready("last")
        family = [psutil.Process(worker.info.pid), psutil.Process(running.scheduler.pid)]
        family += [child for process in family for child in process.children(recursive=True)]
    _, alive = psutil.wait_procs(family, timeout=60)
    assert len(family) > 5
    assert not alive, "the fleet was shut down and left processes"


def test_a_deployed_worker_comes_up_and_a_second_one_beside_it(fleet: LocalFleet) -> None:
    fleet.deploy("two")
    (first,) = fleet.until_ready("two")
    assert (first.info.model.name, first.info.accelerator) == ("two", FAKE)
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


def test_the_start_script_finds_the_scheduler_or_replaces_one_that_is_configured_otherwise(
    fleet: LocalFleet, tmp_path: Path
) -> None:
    fleet.deploy("stays")
    (before,) = fleet.until_ready("stays")
    epoch = fleet.snapshot().scheduler_epoch
    addresses = start_in(fleet, tmp_path, fleet.scheduler.config)
    assert addresses["fleet"] == fleet.scheduler.fleet_address
    assert fleet.snapshot().scheduler_epoch == epoch
    start_in(fleet, tmp_path, replace(fleet.scheduler.config, log_level="debug"))
    fleet.until(lambda: fleet.snapshot().scheduler_epoch != epoch)
    (after,) = fleet.until_ready("stays")
    assert after.info.pid == before.info.pid
    fleet.undeploy("stays")


def start_in(fleet: LocalFleet, folder: Path, config: SchedulerConfig) -> dict[str, str]:
    """`python -m polyfleet.scheduler` in the Ray that runs; what it says."""
    file = folder / "polyfleet.yaml"
    file.write_text(yaml.safe_dump({"scheduler": to_builtins(config)}))
    command = [sys.executable, "-m", "polyfleet.scheduler", "--address", fleet.scheduler.ray_address]
    done = subprocess.run([*command, "--config", str(file)], capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    said: dict[str, str] = json.loads(done.stdout)
    return said


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


@pytest.mark.slow  # tests/e2e do nothing else
def test_a_real_model_is_served(fleet: LocalFleet, tmp_path: Path) -> None:
    tokenizer = byte_level_metadata()
    shape = TinyShape(vocabulary=len(tokenizer["tokenizer.ggml.tokens"]))
    write_gguf(tmp_path / "tiny.gguf", shape, extra=tokenizer)
    fleet.deploy("tiny", str(tmp_path / "tiny.gguf"), family="cpu")
    (worker,) = fleet.until_ready("tiny")
    assert (worker.info.model.architecture, worker.info.model.vocabulary_size) == ("llama", shape.vocabulary)
    fleet.deploy("tiny", "/no/such/model.gguf", family="cpu")  # a change that can't be served costs no worker
    fleet.until(lambda: any("/no/such/model.gguf" in w.status.reason for w in fleet.workers("tiny")))
    assert worker.info.pid in [w.info.pid for w in fleet.workers("tiny") if w.status.state == READY]
    fleet.undeploy("tiny")


def test_when_its_parent_is_killed_the_whole_fleet_stops(tmp_path: Path) -> None:
    script = (
        "import sys, time; from polyfleet.scheduler.config import LaunchConfig, SchedulerConfig\n"
        "from polyfleet.scheduler.cluster.local import LocalScheduler\n"
        "pools = {'cpu': LaunchConfig(interpreter=sys.argv[2])}\n"
        "config = SchedulerConfig('127.0.0.1:0', '127.0.0.1:0', state_dir=sys.argv[1], accelerators=pools)\n"
        "local = LocalScheduler(config); local.start()\n"
        "print(local.pid, local.fleet_address, flush=True); time.sleep(600)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path), fake_interpreter(tmp_path)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    pid, address = parent.stdout.readline().split()
    with grpc.insecure_channel(address) as channel:
        stub = fleet_pb2_grpc.FleetStub(channel)
        wish = pb.ModelDeployment(name="d", source="fake:", workers=1)
        stub.Deploy(pb.DeployRequest(deployment=wish))
        while not (found := stub.ListWorkers(pb.ListWorkersRequest()).workers) or found[0].status.state != READY:
            time.sleep(0.05)
    family = [psutil.Process(int(pid)), *psutil.Process(int(pid)).children(recursive=True)]
    family.append(psutil.Process(found[0].info.pid))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not alive


def test_when_its_process_is_killed_no_file_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a path short enough for Ray
        monkeypatch.setattr(tempfile, "tempdir", folder)
        with LocalScheduler(configured(tmp_path)) as local:
            assert local.pid
            assert len(os.listdir(folder)) == 1
            family = psutil.Process(local.pid).children(recursive=True)
            os.kill(local.pid, signal.SIGKILL)
            for each in family:  # Ray's agents would stay for minutes
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            psutil.wait_procs(family)
        assert os.listdir(folder) == []


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
        LocalScheduler(configured(tmp_path)).start()
