"""A part of Ray dies or hangs: `polyfleet serve` starts Ray again by itself, and what serves, serves on."""

import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from tests.support.serve_process import ServeProcess, alive, wait_for
from tests.support.streams import Stream

PROMPT = [33, 28, 216, 34, 28, 216, 35, 28, 216, 36, 28, 216]
TOKENS = 200


@pytest.fixture(scope="module")
def channel(own_stack: ServeProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(own_stack.grpc) as channel:
        yield channel


@pytest.fixture(scope="module")
def undisturbed(channel: grpc.Channel) -> list[int]:
    """The answer while nothing happens."""
    return Stream(channel, PROMPT, TOKENS).wait().token_ids


@pytest.mark.parametrize(
    ("part", "number"),
    [
        ("raylet", signal.SIGKILL),
        ("gcs_server", signal.SIGKILL),
        (r"polyfleet\.scheduler", signal.SIGKILL),
        pytest.param(r"polyfleet\.scheduler", signal.SIGSTOP, marks=pytest.mark.slow),
        pytest.param("raylet", signal.SIGSTOP, marks=pytest.mark.slow),  # found out within a minute
        pytest.param("gcs_server", signal.SIGSTOP, marks=pytest.mark.slow),
        pytest.param(r"^ray::SchedulerActor", signal.SIGSTOP, marks=pytest.mark.slow),
    ],
)
def test_a_part_of_ray_dies_or_hangs(
    own_stack: ServeProcess, channel: grpc.Channel, undisturbed: list[int], part: str, number: signal.Signals
) -> None:
    (worker,) = own_stack.ready_workers()
    before = own_stack.find(r"^ray::|raylet|gcs_server|polyfleet\.scheduler")
    folders = set(own_stack.ray_folders())
    (victim,) = own_stack.find(part)
    printed = own_stack.output.count("Ray runs again.")
    stream = Stream(channel, PROMPT, TOKENS).wait_started()
    victim.send_signal(number)
    assert stream.wait().token_ids == undisturbed, stream.error
    wait_for(lambda: own_stack.output.count("Ray runs again.") > printed, "Ray's return")
    wait_for(own_stack.ready_workers, "the worker to be known")
    assert [each["pid"] for each in own_stack.ready_workers()] == [worker["pid"]]
    wait_for(lambda: own_stack.find("^ray::Launcher"), "its launcher")
    assert not [each for each in before if alive(each)]
    assert len(folders) == 1
    assert not [folder for folder in folders if Path(folder).exists()]
    assert Stream(channel, PROMPT, TOKENS).wait().token_ids == undisturbed


def test_and_then_everything_is_as_ever(own_stack: ServeProcess) -> None:
    (worker,) = own_stack.ready_workers()
    more = own_stack.polyfleet("deploy", worker["deployment"], "--workers", "2", "--fleet", own_stack.fleet)
    assert more.returncode == 0, more.stderr
    wait_for(lambda: len(own_stack.ready_workers()) == 2, "the second worker")
    assert worker["pid"] in [each["pid"] for each in own_stack.ready_workers()]
    fewer = own_stack.polyfleet("deploy", worker["deployment"], "--workers", "1", "--fleet", own_stack.fleet)
    assert fewer.returncode == 0, fewer.stderr
    wait_for(lambda: len(own_stack.locks()) == 1, "the surplus worker to leave")
    assert own_stack.stop() == 0, own_stack.output
    assert own_stack.processes() == set()
    assert own_stack.ray_folders() == []
