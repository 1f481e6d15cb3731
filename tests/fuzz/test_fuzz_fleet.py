"""The scheduler's service takes any bytes, also in streams, from those who may call it; the fleet stays readable."""

import random
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from tests.support.bad_messages import bad_messages
from tests.support.raw_calls import RawChannel
from tests.support.running_scheduler import start, stop
from tests.support.watched_log import no_faults_logged

from polyfleet.v1 import fleet_pb2 as pb

SERVICE = "/polyfleet.v1.Fleet/"
SEED = 20_251
HASH = sha256(b"abc").hexdigest()
INFO = pb.WorkerInfo(
    worker_id="w-1", address="127.0.0.1:1", accelerator="cpu", pid=7, host="h", deployment="d",
    model=pb.ModelInfo(name="fake", tokenizer_hash=HASH, context_length=64, vocabulary_size=9, block_size=16),
)  # fmt: skip
STATUS = pb.WorkerStatus(state=pb.WORKER_STATE_READY, counters=pb.EngineCounters(admitted=1, finished=1))
WISH = pb.ModelDeployment(name="d", source="/m.gguf", workers=1, options=pb.WorkerOptions(dtype="auto"))
GOOD: dict[str, list[Any]] = {
    "Register": [
        pb.RegisterRequest(info=INFO),
        pb.RegisterRequest(status=STATUS),
        pb.RegisterRequest(asset=pb.AssetChunk(hash=HASH, total_bytes=3, data=b"abc")),
    ],
    "GetTokenizer": [pb.GetTokenizerRequest(hash=HASH)],
    "ListWorkers": [pb.ListWorkersRequest()],
    "Drain": [pb.DrainRequest(worker_id="w-1")],
    "Deploy": [pb.DeployRequest(deployment=WISH)],
    "UndoRollout": [pb.UndoRolloutRequest(name="d")],
    "Undeploy": [pb.UndeployRequest(name="d")],
    "WatchFleet": [pb.WatchFleetRequest(gateway_id="g-1")],
}
TURNS = (
    "Register",
    "Deploy",
    "UndoRollout",
    "Register",
    "Drain",
    "Register",
    "GetTokenizer",
    "Undeploy",
    "WatchFleet",
    "ListWorkers",
)
ALLOWED = {
    "OK",
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "FAILED_PRECONDITION",
    "ABORTED",
}


@pytest.mark.parametrize("count", [150, pytest.param(2000, marks=pytest.mark.slow)])
async def test_any_bytes_end_with_a_status_of_the_caller(count: int, tmp_path: Path) -> None:
    with no_faults_logged() as faults:
        running = await start(tmp_path)
        seen: dict[str, int] = {}
        with RawChannel(running.address) as channel:
            for method, messages in _cases(count):
                code, _ = await channel.call(SERVICE + method, messages, endless=method == "WatchFleet")
                assert code in ALLOWED, (method, code, messages)
                assert faults == [], (method, messages)
                seen[code] = seen.get(code, 0) + 1
        assert seen["INVALID_ARGUMENT"] > count / 5
        assert seen["OK"] > count / 20
        await running.fleet.Deploy(pb.DeployRequest(deployment=WISH))
        assert "d" in {each.name for each in (await running.snapshot()).deployments}
        await stop(running)


def _cases(count: int) -> Iterator[tuple[str, list[bytes]]]:
    """(method, messages) in turns; streams begin with a good introduction half of the time."""
    rng = random.Random(SEED)
    rows = {method: bad_messages(SEED, count * 3, messages) for method, messages in GOOD.items()}
    for turn in range(count):
        method = TURNS[turn % len(TURNS)]
        if method == "Register":
            begin = [GOOD[method][0].SerializeToString()] * rng.randrange(2)
            yield method, begin + [next(rows[method]).data for _ in range(rng.randint(0, 3))]
        else:
            yield method, [next(rows[method]).data]
