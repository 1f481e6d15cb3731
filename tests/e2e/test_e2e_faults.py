"""What dies is replaced, and what lives goes on meanwhile."""

from collections.abc import Iterator
from typing import Any

import grpc
import psutil
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status
from tests.support.serve_process import ServeProcess, alive, wait_for
from tests.support.streams import Stream

from polyfleet.cli.stack.settings import MODEL_NAME

COUNTING = [33, 28, 216, 34, 28, 216, 35, 28, 216, 36, 28, 216]
TOKENS = 40


@pytest.fixture(scope="module")
def channel(own_stack: ServeProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(own_stack.grpc) as channel:
        yield channel


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
def test_the_data_path_outlives(own_stack: ServeProcess, channel: grpc.Channel, title: str) -> None:
    worker = only_worker(own_stack)
    (victim,) = own_stack.find(title)
    stream = Stream(channel, COUNTING, TOKENS).wait_started()
    kill(victim)
    assert len(stream.wait().token_ids) == TOKENS, stream.error
    assert len(Stream(channel, COUNTING, TOKENS).wait().token_ids) == TOKENS
    returned = wait_for(lambda: [each for each in own_stack.find(title) if each.pid != victim.pid], "its return")
    wait_for(own_stack.ready_workers, "the worker to be known")
    assert len(Stream(channel, COUNTING, TOKENS).wait().token_ids) == TOKENS
    assert all(alive(each) for each in returned)
    assert only_worker(own_stack) == worker
    assert [lock["pid"] for lock in own_stack.locks()] == [worker.pid]


def test_a_killed_worker_is_started_again_and_requests_wait_or_are_told_when(
    own_stack: ServeProcess, channel: grpc.Channel
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
        assert len(meanwhile.token_ids) == TOKENS
    assert len(Stream(channel, COUNTING, TOKENS).wait().token_ids) == TOKENS


def retry_seconds(error: Any) -> float:
    """The retry hint of an UNAVAILABLE."""
    assert error.code() is grpc.StatusCode.UNAVAILABLE, error
    status = rpc_status.from_call(error)
    assert status is not None
    hint = error_details_pb2.RetryInfo()
    assert any(detail.Unpack(hint) for detail in status.details)
    return float(hint.retry_delay.seconds + hint.retry_delay.nanos / 1e9)


def test_a_stream_survives_its_worker(own_stack: ServeProcess, channel: grpc.Channel) -> None:
    whole = Stream(channel, COUNTING, TOKENS).wait()
    more = own_stack.polyfleet("deploy", MODEL_NAME, "--workers", "2", "--fleet", own_stack.fleet)
    assert more.returncode == 0, more.stderr
    wait_for(lambda: len(own_stack.ready_workers()) == 2, "the second worker")
    pids = {worker["worker_id"]: worker["pid"] for worker in own_stack.ready_workers()}
    stream = Stream(channel, COUNTING, TOKENS)
    wait_for(lambda: len(stream.token_ids) >= 3 or stream.ended, "three tokens")
    kill(psutil.Process(pids[stream.worker_ids[0]]))
    assert stream.wait().error is None
    assert len(stream.worker_ids) == 2
    assert stream.worker_ids[0] != stream.worker_ids[1]
    assert stream.token_ids == whole.token_ids
    assert stream.messages[-1].usage.completion_tokens == TOKENS
