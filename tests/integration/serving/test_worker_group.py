"""A worker of several ranks: the devices that it takes, and its end when a rank dies or hangs."""

import asyncio
import signal
import time
from pathlib import Path

import pytest
from tests.integration.serving.test_worker_devices import device_series
from tests.support import lab_backend
from tests.support.running_worker import REAL, RunningWorker
from tests.support.serve_process import alive, wait_for
from tests.support.tiny_models import TinyShape, write_gguf
from tests.support.tiny_tokenizers import byte_level_metadata

from polyfleet.backends.cpu import usable_cores
from polyfleet.v1 import inference_pb2 as inference
from polyfleet.v1 import worker_pb2 as pb

SHAPE = TinyShape(vocabulary=len(byte_level_metadata()["tokenizer.ggml.tokens"]))
GROUP = ("--tensor-parallel", "2", "--executor", "eager", "--dtype", "float32", "--canary-interval", "0")
LOST_SECONDS = 60  # a bound against hanging


@pytest.mark.parametrize(("options", "count", "seen"), [(("--tensor-parallel", "2"), 2, "0,1"), ((), 1, "0")])
async def test_a_worker_takes_a_device_for_each_rank(
    tmp_path: Path, options: tuple[str, ...], count: int, seen: str
) -> None:
    device = tmp_path / "device"
    device.write_text("")
    environ = lab_backend.install(tmp_path / "site", device, devices="0,1")
    asked = ("--accelerator", "lab", "--telemetry-interval", "0.1", *options)
    async with RunningWorker(tmp_path, *asked, model="fake:", environ=environ) as worker:
        info = (await worker.status()).info
        assert (info.device_index, info.num_devices) == (0, count)
        assert worker.engine().environ()[lab_backend.VISIBLE] == seen
        while len((await device_series(worker)).get("polyfleet_device_info", ())) != count:
            await asyncio.sleep(0.02)
        readings = (await device_series(worker))["polyfleet_device_temperature_celsius"]
        assert [labels["uuid"] for labels, _ in readings] == ["LAB-1", "LAB-2"][:count]


@pytest.mark.slow
@pytest.mark.skipif(usable_cores() < 2, reason="ranks have a core each")
@pytest.mark.parametrize(
    ("number", "said"),
    [(signal.SIGKILL, "rank 1 of 2 was killed by SIGKILL"), (signal.SIGSTOP, "rank 1 of 2 showed no sign of life")],
)
@pytest.mark.parametrize("busy", [True, False])
async def test_a_worker_ends_when_a_rank_is_lost(tmp_path: Path, number: signal.Signals, said: str, busy: bool) -> None:
    """Sequences end UNAVAILABLE, which gateways move, and whoever started the worker starts another."""
    model = tmp_path / "tiny.gguf"
    write_gguf(model, SHAPE, extra=byte_level_metadata())
    async with RunningWorker(tmp_path, *GROUP, model=str(model), command=REAL) as worker, worker.session() as session:
        engine = worker.engine()
        (rank,) = engine.children()
        if busy:
            greedy = inference.SamplingParams(temperature=0.0)
            start = pb.StartSequence(
                sequence_id="cut", prompt_ids=(1, 5, 9), max_tokens=240, sampling=greedy, ignore_eos=True
            )
            await session.start(start)
            while not (await session.event()).deltas:
                pass
        rank.send_signal(number)
        begun = time.monotonic()
        if busy:
            (last, *_) = reversed((await session.run_to_end())["cut"])
            assert last.error.code == 14, last
            assert said in last.error.message
        assert await worker.exit_status() == 1
        assert time.monotonic() - begun < LOST_SECONDS
        assert said in worker.errors
        wait_for(lambda: not alive(rank) and not alive(engine), "the end of both processes")
