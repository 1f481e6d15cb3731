"""The worker's service takes any bytes, also in sessions; a good session beside them gets all its tokens."""

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from google.rpc import code_pb2
from tests.support.bad_messages import bad_messages, change_bytes
from tests.support.fake_tokens import fake_tokens
from tests.support.raw_calls import RawChannel
from tests.support.running_worker import RunningWorker
from tests.support.session_client import tokens_of

from polyfleet.v1 import worker_pb2 as pb
from polyfleet.v1.fleet_pb2 import WorkerOptions
from polyfleet.v1.inference_pb2 import POOLING_MEAN, SamplingParams

SERVICE = "/polyfleet.v1.Worker/"
SEED = 20_252
START = pb.StartSequence(
    sequence_id="s", prompt_ids=[1, 2], generated_ids=[3], max_tokens=5, stop_token_ids=[4], logprobs=2,
    sampling=SamplingParams(temperature=0.5, top_p=0.9, seed=7), request_id="r",
)  # fmt: skip
SESSION: list[Any] = [
    pb.SessionCommand(start=START),
    pb.SessionCommand(start=pb.StartSequence(sequence_id="e", prompt_ids=[1], pooling=POOLING_MEAN)),
    pb.SessionCommand(cancel=pb.CancelSequence(sequence_id="s")),
    pb.SessionCommand(hello=pb.Hello(gateway_id="g")),
]
HELLO = SESSION[-1].SerializeToString()
LOAD = [pb.LoadRequest(deployment="d", model_name="m", source="fake:", options=WorkerOptions(dtype="auto", threads=1))]
ALLOWED = {"OK", "INVALID_ARGUMENT", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED"}
CALLERS = {code_pb2.INVALID_ARGUMENT, code_pb2.RESOURCE_EXHAUSTED}  # of sequences


@pytest.mark.parametrize("count", [150, pytest.param(2000, marks=pytest.mark.slow)])
async def test_any_bytes_end_with_a_status_of_the_caller(count: int, tmp_path: Path) -> None:
    seen: dict[str, int] = {}
    async with RunningWorker(tmp_path, "--log-level", "warning", model="fake:step_seconds=0.001") as worker:
        with RawChannel(worker.address) as channel:
            for method, messages in _cases(count):
                code, answers = await channel.call(SERVICE + method, messages)
                assert code in ALLOWED, (method, code, messages)
                refused = _refused(answers) if method == "Session" else set()
                elsewhere = {code_pb2.UNAVAILABLE} if any(map(_adapter, messages)) else set()  # may have it
                assert refused <= CALLERS | elsewhere, (refused, messages)
                seen[code] = seen.get(code, 0) + 1
        await _alive(worker)
    assert seen["INVALID_ARGUMENT"] > count / 5
    assert seen["OK"] > count / 20
    assert "Traceback" not in worker.errors


async def _alive(worker: RunningWorker) -> None:
    """It computes as before, and nothing of what it was sent runs on."""
    async with worker.session() as session:
        await session.start(pb.StartSequence(sequence_id="good", prompt_ids=[1], max_tokens=9))
        assert tokens_of((await session.run_to_end())["good"]) == fake_tokens([1], 9)
        while (await session.event()).status.running_sequences:
            pass
    assert worker.process.returncode is None


def _adapter(message: bytes) -> str:
    """The adapter that a start names, if it is one."""
    with suppress(DecodeError):
        return pb.SessionCommand.FromString(message).start.adapter
    return ""


def _refused(events: list[bytes]) -> set[int]:
    """Codes of the sequences that ended with an error."""
    deltas = [delta for event in events for delta in pb.SessionEvent.FromString(event).deltas]
    return {delta.error.code for delta in deltas if delta.HasField("error")}


def _cases(count: int) -> Iterator[tuple[str, list[bytes]]]:
    """(method, messages): sessions mostly; Drain and Unload, which any message means, only with what is none."""
    rng = random.Random(SEED)
    commands = bad_messages(SEED, count * 5, SESSION)
    loads = bad_messages(SEED, count, LOAD)
    for turn in range(count):
        if turn % 5:
            begin = [HELLO] * min(1, rng.randrange(5))
            yield "Session", begin + [next(commands).data for _ in range(rng.randint(0, 4))]
        elif turn % 3 == 0:
            yield "Load", [next(loads).data]
        elif turn % 3 == 1:
            yield "Status", [change_bytes(rng, b"\x0a\x01x")]
        else:
            yield rng.choice(("Drain", "Unload")), [b"\xff" + rng.randbytes(5)]
