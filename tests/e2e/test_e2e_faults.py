"""What dies is replaced, and what lives goes on meanwhile."""

import signal
from collections.abc import Iterator
from typing import Any

import grpc
import psutil
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status
from tests.support.serve_process import ServeProcess, alive, command_line, wait_for
from tests.support.streams import Stream

from polyfleet.cli.stack.settings import MODEL_NAME

COUNTING = [33, 28, 216, 34, 28, 216, 35, 28, 216, 36, 28, 216]
TOKENS = 40


@pytest.fixture(scope="module")
def channel(own_stack: ServeProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(own_stack.grpc) as channel:
        yield channel


@pytest.fixture(scope="module")
def undisturbed(channel: grpc.Channel) -> list[int]:
    """The answer while nothing happens."""
    return answer(channel)


def answer(channel: grpc.Channel) -> list[int]:
    return Stream(channel, COUNTING, TOKENS).wait().token_ids


def health(channel: grpc.Channel) -> int:
    answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
    return int(answer.status)


def only_worker(stack: ServeProcess) -> psutil.Process:
    (worker,) = stack.workers()
    assert worker["state"] == "ready"
    return psutil.Process(worker["pid"])


def kill(process: psutil.Process) -> None:
    process.kill()
    wait_for(lambda: not alive(process), f"the end of process {process.pid}")


@pytest.mark.parametrize("title", [r"^ray::SchedulerActor", r"^ray::Launcher"])
def test_the_data_path_outlives(
    own_stack: ServeProcess, channel: grpc.Channel, undisturbed: list[int], title: str
) -> None:
    worker = only_worker(own_stack)
    (victim,) = own_stack.find(title)
    stream = Stream(channel, COUNTING, TOKENS).wait_started()
    kill(victim)
    assert stream.wait().token_ids == undisturbed, stream.error
    assert answer(channel) == undisturbed
    returned = wait_for(lambda: [each for each in own_stack.find(title) if each.pid != victim.pid], "its return")
    wait_for(own_stack.ready_workers, "the worker to be known")
    assert answer(channel) == undisturbed
    assert all(alive(each) for each in returned)
    assert only_worker(own_stack) == worker
    assert [lock["pid"] for lock in own_stack.locks()] == [worker.pid]


def test_a_killed_worker_is_started_again_and_requests_wait_or_are_told_when(
    own_stack: ServeProcess, channel: grpc.Channel, undisturbed: list[int]
) -> None:
    assert health(channel) == health_pb2.HealthCheckResponse.SERVING
    worker = only_worker(own_stack)
    kill(worker)
    meanwhile = Stream(channel, COUNTING, TOKENS)
    wait_for(lambda: health(channel) == health_pb2.HealthCheckResponse.NOT_SERVING, "health to turn")
    wait_for(own_stack.ready_workers, "the worker's return")
    wait_for(lambda: health(channel) == health_pb2.HealthCheckResponse.SERVING, "health to turn back")
    assert only_worker(own_stack) != worker
    if error := meanwhile.wait().error:
        assert retry_seconds(error) > 0
    else:
        assert meanwhile.token_ids == undisturbed
    assert answer(channel) == undisturbed


def retry_seconds(error: Any) -> float:
    """The retry hint of an UNAVAILABLE."""
    assert error.code() is grpc.StatusCode.UNAVAILABLE, error
    status = rpc_status.from_call(error)
    assert status is not None
    hint = error_details_pb2.RetryInfo()
    assert any(detail.Unpack(hint) for detail in status.details)
    return float(hint.retry_delay.seconds + hint.retry_delay.nanos / 1e9)


@pytest.mark.parametrize("end", ["kill the worker", "kill its engine", "stop its engine"])
def test_a_stream_survives_its_worker(
    own_stack: ServeProcess, channel: grpc.Channel, undisturbed: list[int], end: str
) -> None:
    with_two_workers(own_stack)
    stream = Stream(channel, COUNTING, TOKENS)
    wait_for(lambda: len(stream.token_ids) >= 3 or stream.ended, "three tokens")
    victim = serving(own_stack, stream)
    if end != "kill the worker":
        (victim,) = (each for each in victim.children() if "engine_process" in command_line(each))
    victim.send_signal(signal.SIGSTOP if end == "stop its engine" else signal.SIGKILL)
    assert stream.wait().error is None
    assert len(set(stream.worker_ids)) == 2
    assert stream.token_ids == undisturbed
    assert stream.messages[-1].usage.completion_tokens == TOKENS
    if end == "stop its engine":
        victim.send_signal(signal.SIGCONT)


def with_two_workers(stack: ServeProcess) -> None:
    more = stack.polyfleet("deploy", MODEL_NAME, "--workers", "2", "--fleet", stack.fleet)
    assert more.returncode == 0, more.stderr
    wait_for(lambda: len(stack.ready_workers()) == 2, "two workers")


def serving(stack: ServeProcess, stream: Stream) -> psutil.Process:
    """The worker that computes it now."""
    pids = {worker["worker_id"]: worker["pid"] for worker in stack.workers()}
    return psutil.Process(pids[stream.worker_ids[-1]])
