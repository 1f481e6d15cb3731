"""Two real workers, one of which computes prompts for the other: answers as in place, whoever dies meanwhile."""

import asyncio
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support.gateway_rig import GatewayRig, Stream, until
from tests.support.running_worker import REAL, RunningWorker
from tests.support.tiny_models import TinyShape, write_gguf
from tests.support.tiny_tokenizers import byte_level_metadata

from polyfleet.loading.load import load_model
from polyfleet.placement.policy import Policy
from polyfleet.v1 import fleet_pb2
from polyfleet.v1 import inference_pb2 as pb

SHAPE = TinyShape(vocabulary=len(byte_level_metadata()["tokenizer.ggml.tokens"]), context=1024)
OPTIONS = ("--threads", "1", "--kv-cache-tokens", "8192", "--max-sequences", "8", "--canary-interval", "0")
PROMPT = [3 + 7 * place % 200 for place in range(700)]
CROWDED = {"placement": Policy(crowd_weight=1e6)}  # one that decodes is crowd enough
PREFILL, DECODE = fleet_pb2.WORKER_ROLE_PREFILL, fleet_pb2.WORKER_ROLE_DECODE


class Pair(NamedTuple):
    """A gateway with its two workers; something decodes on the one for that."""

    rig: GatewayRig
    prefill: RunningWorker
    decode: RunningWorker

    async def answer(self, prompt: list[int]) -> Stream:
        """Twelve greedy tokens."""
        request = pb.GenerateRequest(model="fake", token_ids=prompt, max_tokens=12, ignore_eos=True)
        request.sampling.temperature = 0
        return await Stream.read(self.rig.stub.Generate(request))


async def value(address: str, series: str) -> float:
    """Of a series of a process's /metrics."""

    def get() -> str:
        with urllib.request.urlopen(f"{address}/metrics") as answer:
            return str(answer.read().decode())

    lines = (await asyncio.to_thread(get)).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(series))


async def outcomes(worker: RunningWorker, outcome: str) -> float:
    return await value(
        f"http://{worker.lock.metrics_address}", f'polyfleet_prefills_apart_total{{outcome="{outcome}"}}'
    )


@asynccontextmanager
async def pair(folder: Path, kinds: Sequence[Sequence[str]] = ((), ())) -> AsyncIterator[Pair]:
    """`kinds`: further flags of either worker."""
    model = folder / "tiny.gguf"
    write_gguf(model, SHAPE, "F32", extra=byte_level_metadata())
    assets = load_model(model).tokenizer
    assert assets is not None
    homes = [folder / name for name in ("prefill", "decode")]
    for home in homes:
        home.mkdir()
    prefill, decode = (
        RunningWorker(home, *OPTIONS, *kind, model=str(model), command=REAL)
        for home, kind in zip(homes, kinds, strict=True)
    )
    async with GatewayRig(config=CROWDED) as rig, prefill, decode:
        rig.fleet.add_assets(assets.document)
        crowd = pb.GenerateRequest(model="fake", token_ids=[5, 6, 7], max_tokens=1000, ignore_eos=True)
        sessions = rig.gateway.view.sessions
        for worker, role in ((decode, DECODE), (prefill, PREFILL)):
            answer = await worker.status()
            answer.info.role = role
            rig.fleet.workers[answer.info.worker_id] = fleet_pb2.FleetWorker(info=answer.info, status=answer.status)
            rig.fleet.publish()
            await until(
                lambda: len(sessions) == len(rig.fleet.workers) and all(s.offer.address for s in sessions.values())
            )
            if worker is decode:  # while it is alone: a short prompt goes to either
                call = rig.stub.Generate(crowd)
                await call.read()
        try:
            yield Pair(rig, prefill, decode)
        finally:
            call.cancel()


@pytest.mark.slow
async def test_a_prompt_is_computed_by_the_one_and_answered_by_the_other(tmp_path: Path) -> None:
    async with pair(tmp_path) as fleet:
        first = await fleet.answer(PROMPT)
        decode_id = (await fleet.decode.status()).info.worker_id
        assert first.workers() == [decode_id]
        assert first.usage.cached_tokens == 688  # all whole blocks of what is before the last token
        assert await outcomes(fleet.decode, "fetched") == 1
        assert await value(fleet.rig.metrics, 'polyfleet_prefills_total{decision="apart"}') == 1
        alone = await fleet.answer(PROMPT[1:])  # of which nothing is known
        again = await fleet.answer(PROMPT)  # all but its end is there by now
        assert again.ids() == first.ids()
        assert await value(fleet.rig.metrics, 'polyfleet_prefills_total{decision="short"}') >= 1
        fleet.prefill.process.kill()
        await until(lambda: not all(each.connected for each in fleet.rig.gateway.view.sessions.values()))
        assert (await fleet.answer(PROMPT[1:])).ids() == alone.ids()
        here = await fleet.answer([9, *PROMPT])
        assert len(here.ids()) == 12
        assert await value(fleet.rig.metrics, 'polyfleet_prefills_total{decision="no_prefill_worker"}') >= 1


@pytest.mark.slow
@pytest.mark.parametrize("dies", ["prefill", "decode"])
async def test_the_death_of_either_while_a_prompt_is_computed_loses_nothing(dies: str, tmp_path: Path) -> None:
    async with pair(tmp_path) as fleet:
        expected = (await fleet.answer(PROMPT)).ids()  # on tiny models of one kind to the bit, wherever
        other = [PROMPT[0], *PROMPT]
        engine = fleet.prefill.engine()
        engine.suspend()  # it accepts connections, and says nothing
        stream = asyncio.create_task(fleet.answer(other))
        sessions = fleet.rig.gateway.view.sessions
        decode_id = (await fleet.decode.status()).info.worker_id
        await until(lambda: sessions[decode_id].num_sequences == 2)
        if dies == "prefill":
            engine.kill()
            answer = await stream
            assert answer.workers() == [decode_id]
            assert await outcomes(fleet.decode, "fetched") == 1  # the first one alone
        else:
            fleet.decode.process.kill()
            engine.resume()
            answer = await stream
            assert answer.workers() != [decode_id]
        assert len(answer.ids()) == 12
        assert (await fleet.answer(PROMPT)).ids() == expected
