"""Requests share a worker fairly, and a second worker takes its part."""

from collections.abc import Iterator
from itertools import count

import grpc
import pytest
from tests.support.serve_process import ServeProcess, wait_for
from tests.support.streams import Stream

from polyfleet.cli.stack.settings import MODEL_NAME

PROMPT = list(range(2000, 2016))
MANY = 16
FOR_EVER = 4000  # tokens: nothing that a test waits for


@pytest.fixture(scope="module")
def channel(stack: ServeProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(stack.grpc) as channel:
        yield channel


def test_a_new_request_does_not_wait_for_fifteen_others_to_end(channel: grpc.Channel) -> None:
    running = [Stream(channel, [token + index for token in PROMPT], FOR_EVER) for index in range(15)]
    try:
        for stream in running:
            stream.wait_started()
        running.append(Stream(channel, [5, 6, 7, 8], FOR_EVER).wait_started())
        assert [stream.ended for stream in running] == [False] * 16
    finally:
        for stream in running:
            stream.cancel()


def test_a_second_worker_takes_traffic_once_it_is_ready(stack: ServeProcess, channel: grpc.Channel) -> None:
    done = stack.polyfleet("deploy", MODEL_NAME, "--workers", "2", "--fleet", stack.fleet)
    assert done.returncode == 0, done.stderr
    wait_for(lambda: len(stack.ready_workers()) == 2, "the second worker")
    wanted = {worker["worker_id"] for worker in stack.ready_workers()}
    streams: list[Stream] = []
    prompts = ([token + index for token in PROMPT] for index in count())

    def one_more_reaches_both() -> bool:
        """The gateway has yet to hear of the worker: `MANY` run on, the oldest makes room."""
        if len(streams) == MANY:
            streams.pop(0).cancel()
        streams.append(Stream(channel, next(prompts), FOR_EVER).wait_started())
        return {worker for stream in streams for worker in stream.worker_ids} == wanted

    try:
        wait_for(one_more_reaches_both, "a stream from each worker")
    finally:
        for stream in streams:
            stream.cancel()
        stack.polyfleet("scale", MODEL_NAME, "1", "--fleet", stack.fleet)
        wait_for(lambda: len(stack.locks()) == 1, "the second worker to leave")
