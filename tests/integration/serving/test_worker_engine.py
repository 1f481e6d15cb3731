"""The real worker process with the real engine and a tiny model file."""

from pathlib import Path

import grpc
import pytest
from tests.support.running_worker import REAL, RunningWorker
from tests.support.session_client import tokens_of
from tests.support.tiny_models import TinyShape, write_folder, write_gguf
from tests.support.tiny_tokenizers import byte_level_metadata

from polyfleet.engine import generate_offline
from polyfleet.engine.canary.canary import NUM_TOKENS, candidate_prompts
from polyfleet.v1 import inference_pb2 as inference
from polyfleet.v1 import worker_pb2 as pb
from polyfleet.v1 import worker_pb2_grpc

GREEDY = inference.SamplingParams(temperature=0.0)
SHAPE = TinyShape(vocabulary=len(byte_level_metadata()["tokenizer.ggml.tokens"]))
OPTIONS = ("--canary-interval", "0", "--dtype", "float32", "--threads", "1", "--kv-cache-tokens", "1024")


async def test_a_worker_gives_the_tokens_that_the_engine_gives_alone(tmp_path: Path) -> None:
    model = tmp_path / "tiny.gguf"
    write_gguf(model, SHAPE, extra=byte_level_metadata())
    prompts = {"a": (1, 5, 9), "b": (7,) * 40, "c": (3,)}
    async with RunningWorker(tmp_path, *OPTIONS, model=str(model), command=REAL) as worker:
        info = (await worker.status()).info.model
        assert (info.architecture, info.vocabulary_size, info.context_length, info.dtype) == (
            "llama",
            SHAPE.vocabulary,
            256,
            "float32",
        )
        assert info.num_blocks * info.block_size == 1024
        async with worker.session() as session:
            for name, prompt in prompts.items():
                await session.start(
                    pb.StartSequence(
                        sequence_id=name, prompt_ids=prompt, max_tokens=20, sampling=GREEDY, ignore_eos=True, logprobs=1
                    )
                )
            seen = await session.run_to_end(len(prompts))
        for name, prompt in prompts.items():
            alone = generate_offline(str(model), prompt, max_tokens=20, dtype="float32", threads=1, ignore_eos=True)
            assert tokens_of(seen[name]) == list(alone.token_ids)
            logprobs = [each for delta in seen[name] for each in delta.logprobs]
            assert [each.top_ids[0] for each in logprobs] == list(alone.token_ids), "greedy takes the likeliest"
        status = (await worker.status()).status
        assert status.free_blocks == info.num_blocks
        canary = len(candidate_prompts(SHAPE.vocabulary)[0])
        assert status.counters.prompt_tokens == sum(map(len, prompts.values())) + canary
        assert status.counters.generated_tokens == 60 + NUM_TOKENS


async def test_a_truncated_file_is_refused_with_its_name_and_the_next_one_is_loaded(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.gguf", tmp_path / "bad.gguf"
    write_gguf(good, SHAPE, extra=byte_level_metadata())
    bad.write_bytes(good.read_bytes()[:-1000])
    async with (
        RunningWorker(tmp_path, command=REAL) as worker,
        grpc.aio.insecure_channel(worker.address) as channel,
    ):
        stub = worker_pb2_grpc.WorkerStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            _ = [step async for step in stub.Load(pb.LoadRequest(model_name="m", source=str(bad)))]
        assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert str(bad) in (refused.value.details() or "")
        steps = [step async for step in stub.Load(pb.LoadRequest(model_name="m", source=str(good)))]
        assert steps[-1].model.name == "m"


async def test_a_model_without_a_tokenizer_is_refused_in_a_sentence(tmp_path: Path) -> None:
    model = write_folder(tmp_path / "tiny", TinyShape())
    request = pb.LoadRequest(source=str(model), model_name="tiny")
    async with (
        RunningWorker(tmp_path, command=REAL) as worker,
        grpc.aio.insecure_channel(worker.address) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            _ = [progress async for progress in worker_pb2_grpc.WorkerStub(channel).Load(request)]
    sentence = "there is no tokenizer (tokenizer.json, or a GGUF file's own), so text can't be served with it"
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert refused.value.details() == f"{model}: {sentence}"
