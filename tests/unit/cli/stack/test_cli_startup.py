"""How `polyfleet serve` reads the fleet while it waits, and what it wishes for."""

from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from polyfleet.cli.chosen import Choice
from polyfleet.cli.commands.serve import with_users_choice
from polyfleet.cli.config import Deployment, StatedOptions
from polyfleet.cli.errors import CliError
from polyfleet.cli.stack import startup
from polyfleet.cli.stack.settings import Flags, resolve
from polyfleet.cli.stack.stack import local_places, to_proto
from polyfleet.cli.stack.startup import fleet_ready
from polyfleet.cli.terminal.progress import PATIENCE, LoadingView
from polyfleet.tuning.choice import choice_file, write_choice
from polyfleet.v1 import fleet_pb2 as pb

SMALL = Deployment(name="small", source="/m.gguf")
OTHER = Deployment(name="other", source="/o.gguf")


def worker(deployment: str, state: "pb.WorkerState.ValueType", reason: str = "") -> pb.FleetWorker:
    info = pb.WorkerInfo(worker_id=f"w-{deployment}", deployment=deployment)
    return pb.FleetWorker(info=info, status=pb.WorkerStatus(state=state, reason=reason, load_progress=0.5))


def ready(*workers: pb.FleetWorker, wanted: tuple[Deployment, ...] = (SMALL, OTHER)) -> bool:
    with LoadingView() as view:
        return fleet_ready(pb.FleetSnapshot(workers=workers), list(wanted), view)


def test_every_deployment_needs_a_ready_worker() -> None:
    assert not ready()
    assert not ready(worker("small", pb.WORKER_STATE_READY), worker("other", pb.WORKER_STATE_LOADING))
    assert ready(worker("small", pb.WORKER_STATE_READY), worker("other", pb.WORKER_STATE_READY))
    assert ready(wanted=())


def test_a_workers_refusal_ends_the_wait_in_its_own_words() -> None:
    with pytest.raises(CliError, match=r"^m\.gguf is truncated\.$"):
        ready(worker("small", pb.WORKER_STATE_UNHEALTHY, "m.gguf is truncated."))


def test_what_hinders_for_longer_than_a_moment_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    waiting = pb.FleetSnapshot(deployments=[pb.ModelDeployment(name="small", problem="No node of the cluster has x.")])
    with LoadingView() as view:
        for look in range(3 * PATIENCE):
            assert not fleet_ready(waiting, [SMALL], view)
            assert ("No node" in capsys.readouterr().err) == (look == PATIENCE - 1)


def test_a_load_that_stands_still_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    still = pb.FleetSnapshot(workers=[worker("small", pb.WORKER_STATE_LOADING, "Loading has stood still.")])
    with LoadingView() as view:
        assert not any(fleet_ready(still, [SMALL], view) for _ in range(PATIENCE))
        assert "small: Loading has stood still.\n" in capsys.readouterr().err


def test_a_load_is_waited_for_as_long_as_it_gets_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(startup, "POLL_SECONDS", 0.01)
    stack: Any = SimpleNamespace(check=lambda: None)
    looks, shares = iter(range(20)), count()
    startup.wait_until(lambda: next(looks, None) is None, stack, lambda: float(next(shares)))
    with pytest.raises(CliError, match=r"^No progress for 0.05 s: "):
        startup.wait_until(lambda: False, stack, lambda: 0.5)


def test_a_stranger_may_be_unhealthy() -> None:
    stranger = worker("stranger", pb.WORKER_STATE_UNHEALTHY, "hot")
    assert ready(stranger, worker("small", pb.WORKER_STATE_READY), wanted=(SMALL,))


def test_the_wish_carries_every_key_of_the_file() -> None:
    options = StatedOptions(
        dtype="float32",
        context_length=1,
        kv_cache_tokens=2,
        max_sequences=3,
        step_tokens=4,
        threads=5,
        reproducible=True,
        step_seconds=0.5,
        block_size=32,
        prefix_cache=False,
        executor="eager",
    )
    deployment = Deployment(
        name="n", source="/s", model_name="m", accelerators=("cuda", "cpu"), workers=2, options=options
    )
    assert to_proto(deployment) == pb.ModelDeployment(
        name="n",
        model_name="m",
        source="/s",
        accelerators=["cuda", "cpu"],
        workers=2,
        options=pb.WorkerOptions(
            dtype="float32",
            context_length=1,
            kv_cache_tokens=2,
            max_sequences=3,
            step_tokens=4,
            threads=5,
            reproducible=True,
            step_seconds=0.5,
            block_size=32,
            prefix_cache=False,
            executor="eager",
        ),
    )


def test_a_users_choice_holds_for_deployments_that_name_no_accelerator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("POLYFLEET_BACKEND", raising=False)
    plain, named = Deployment(name="n", source="/s"), Deployment(name="n", source="/s", accelerators=("cuda",))
    assert Choice.read().complete(plain) == plain
    monkeypatch.setenv("POLYFLEET_BACKEND", "cpu")
    assert Choice.read().complete(plain).accelerators == ("cpu",)
    assert Choice.read().complete(named) == named
    monkeypatch.setenv("POLYFLEET_BACKEND", "ascend")
    with pytest.raises(CliError, match="Backend ascend is not available: no Huawei Ascend device is present"):
        Choice.read()


def test_chosen_options_fill_what_a_deployment_for_that_backend_leaves_open() -> None:
    choice = Choice("cpu", {"threads": 2, "prefix_cache": False})
    stated = Deployment(name="n", source="/s", options=StatedOptions(threads=0))
    assert choice.complete(stated).options == {"threads": 0, "prefix_cache": False}  # a 0 that is stated counts
    for accelerators in (("cuda",), ("cpu", "cuda")):
        elsewhere = Deployment(name="n", source="/s", accelerators=accelerators)
        assert choice.complete(elsewhere) == elsewhere
    here = Deployment(name="n", source="/s", accelerators=("cpu",))
    assert choice.complete(here).options == choice.options
    of_no_backend = Choice(options={"threads": 2})
    assert of_no_backend.complete(stated).accelerators == ()
    assert of_no_backend.complete(here) == here


def test_serve_says_what_it_takes_from_the_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("POLYFLEET_BACKEND", raising=False)
    settings = resolve(Flags(options={"max_sequences": 3}))
    assert with_users_choice(settings) == settings
    assert capsys.readouterr().err == ""
    write_choice(choice_file(), {"backend": "cpu", "max_sequences": 5, "prefix_cache": False})
    (deployment,) = with_users_choice(settings).config.deployments
    assert deployment.accelerators == ("cpu",)
    assert deployment.options == {"max_sequences": 3, "prefix_cache": False}
    assert "From your choice (`polyfleet config show`): --prefix-cache false." in capsys.readouterr().err


def test_there_is_room_for_every_wished_cpu_worker(tmp_path: Path) -> None:
    assert local_places(resolve(Flags()))["cpu"] >= 4
    (tmp_path / "m.gguf").touch()
    assert local_places(resolve(Flags(model=str(tmp_path / "m.gguf"), workers=900)))["cpu"] == 900
