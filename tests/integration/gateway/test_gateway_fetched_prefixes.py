"""A prompt goes to another worker than the one that holds its beginning: fetched there, answered as in place."""

from pathlib import Path

from tests.support.gateway_rig import GatewayRig, Stream, until
from tests.support.running_worker import REAL, RunningWorker
from tests.support.tiny_models import TinyShape, write_gguf
from tests.support.tiny_tokenizers import byte_level_metadata

from polyfleet.loading.load import load_model
from polyfleet.v1 import fleet_pb2, worker_pb2
from polyfleet.v1 import inference_pb2 as pb

SHAPE = TinyShape(vocabulary=len(byte_level_metadata()["tokenizer.ggml.tokens"]), context=1024)
OPTIONS = ("--threads", "1", "--kv-cache-tokens", "4096", "--max-sequences", "4", "--canary-interval", "0")
PROMPT = [3 + 7 * place % 200 for place in range(700)]


async def test_it_is_fetched_from_a_worker_that_drains(tmp_path: Path) -> None:
    model = tmp_path / "tiny.gguf"
    write_gguf(model, SHAPE, "F32", extra=byte_level_metadata())
    assets = load_model(model).tokenizer
    assert assets is not None
    homes = [tmp_path / name for name in ("one", "two")]
    for home in homes:
        home.mkdir()
    one, two = (RunningWorker(home, *OPTIONS, model=str(model), command=REAL) for home in homes)
    async with GatewayRig() as rig, one, two:
        rig.fleet.add_assets(assets.document)
        sessions = rig.gateway.view.sessions

        async def publish(worker: RunningWorker) -> str:
            answer = await worker.status()
            worker_id = answer.info.worker_id
            rig.fleet.workers[worker_id] = fleet_pb2.FleetWorker(info=answer.info, status=answer.status)
            rig.fleet.publish()
            await until(lambda: worker_id in sessions and bool(sessions[worker_id].offer.address))
            return worker_id

        request = pb.GenerateRequest(model="fake", token_ids=PROMPT, max_tokens=12, ignore_eos=True)
        request.sampling.temperature = 0
        await publish(one)
        first = await Stream.read(rig.stub.Generate(request))
        async with one.session() as session:
            await session.stub.Drain(worker_pb2.WorkerDrainRequest())
        second_id = await publish(two)
        second = await Stream.read(rig.stub.Generate(request))
        assert second.workers() == [second_id]
        assert second.ids() == first.ids()
        assert second.usage.cached_tokens == 640  # of which gateways know, in grains of 64
        third = await Stream.read(rig.stub.Generate(request))
        assert third.ids() == first.ids()
