"""The public service takes any bytes: each call ends with a status that says what is wrong with the request."""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from tests.support.bad_messages import BadMessage, bad_messages
from tests.support.gateway_rig import GatewayRig, Stream, text_worker, until
from tests.support.raw_calls import RawChannel
from tests.support.watched_log import no_faults_logged

from polyfleet.v1 import inference_pb2 as pb

SERVICE = "/polyfleet.v1.Inference/"
SEED = 20_250
MESSAGES = [pb.ChatMessage(role="system", content="be brief"), pb.ChatMessage(role="user", content="hi", name="n")]
SAMPLING = pb.SamplingParams(temperature=0.5, top_p=0.9, top_k=3, min_p=0.1, seed=7, repetition_penalty=1.1)
GOOD: dict[str, list[Any]] = {
    "Generate": [
        pb.GenerateRequest(text="the fox", max_tokens=3, sampling=SAMPLING, stop=["x"], stop_token_ids=[5], n=2),
        pb.GenerateRequest(messages=MESSAGES, max_tokens=3, logprobs=2, priority=1, request_id="r-1"),
        pb.GenerateRequest(token_ids=[1, 2, 3], max_tokens=3, model="fake", ignore_eos=True),
    ],
    "Embed": [
        pb.EmbedRequest(
            inputs=[pb.EmbedInput(text="x"), pb.EmbedInput(token_ids=[1])], pooling=pb.POOLING_LAST, model="fake"
        )
    ],
    "Rerank": [pb.RerankRequest(query="the", documents=["fox", "dog"], top_n=1, model="fake")],
    "Tokenize": [pb.TokenizeRequest(text="the fox"), pb.TokenizeRequest(messages=MESSAGES, model="fake")],
    "ListModels": [pb.ListModelsRequest()],
    "GetModel": [pb.GetModelRequest(name="fake")],
}
TURNS = ("Generate", "Generate", "Embed", "Rerank", "Tokenize", "Generate", "GetModel", "Embed", "ListModels")
ALLOWED = {"OK", "INVALID_ARGUMENT", "NOT_FOUND"}


@pytest.mark.parametrize("count", [150, pytest.param(2000, marks=pytest.mark.slow)])
async def test_any_bytes_end_with_a_status_of_the_caller(count: int) -> None:
    with no_faults_logged() as faults:
        async with GatewayRig() as rig:
            worker = text_worker("w-1", context_length=64)
            await rig.add(worker)
            seen: dict[str, int] = {}
            with raw(rig) as channel:
                for method, bad in _cases(count):
                    code, _ = await channel.call(SERVICE + method, [bad.data])
                    assert code in ALLOWED, (method, code, bad)
                    assert faults == [], (method, bad)
                    seen[code] = seen.get(code, 0) + 1
            assert seen["OK"] > count / 20
            assert seen["INVALID_ARGUMENT"] > count / 4
            await _alive(rig)
            await until(lambda: not worker.sequences)


async def test_a_call_without_a_message_is_answered() -> None:
    async with GatewayRig() as rig:
        with raw(rig) as channel:
            for method in GOOD:
                assert (await channel.call(SERVICE + method, []))[0] == "INVALID_ARGUMENT"
            assert (await channel.call(SERVICE + "Nope", [b""]))[0] == "UNIMPLEMENTED"
            assert (await channel.call("/polyfleet.v1.Nope/Generate", [b""]))[0] == "UNIMPLEMENTED"


async def test_other_services_of_the_port_take_any_bytes_too() -> None:
    with no_faults_logged():
        async with GatewayRig() as rig:
            with raw(rig) as channel:
                for path in (
                    "/grpc.health.v1.Health/Check",
                    "/grpc.health.v1.Health/Watch",
                    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
                    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                ):
                    assert (await channel.call(path, [b"\xff"]))[0] == "INVALID_ARGUMENT", path


async def test_the_key_is_asked_for_before_the_message_is_read(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text(f"keys: [{{id: a, hash: {sha256(b'secret').hexdigest()}}}]")
    async with GatewayRig(config={"keys_file": keys}) as rig:
        with raw(rig) as channel:
            for method in GOOD:
                for message in ([b"\xff"], []):
                    assert (await channel.call(SERVICE + method, message))[0] == "UNAUTHENTICATED"
                key = [("authorization", "Bearer secret")]
                assert (await channel.call(SERVICE + method, [b"\xff"], metadata=key))[0] == "INVALID_ARGUMENT"


async def test_odd_metadata_is_no_fault() -> None:
    odd: list[Any] = [
        ("authorization", "Bearer " + "x" * 5000),
        ("authorization", "Basic"),
        ("odd-bin", b"\xff\x00" * 100),
        ("authorization-bin", b"\xff"),
        ("x-request-id", "a b c"),
    ]
    with no_faults_logged():
        async with GatewayRig() as rig:
            await rig.add(text_worker("w-1"))
            with raw(rig) as channel:
                for pair in odd:
                    request = GOOD["Generate"][0].SerializeToString()
                    assert (await channel.call(SERVICE + "Generate", [request], metadata=[pair]))[0] == "OK", pair


def raw(rig: GatewayRig) -> RawChannel:
    return RawChannel(f"127.0.0.1:{rig.gateway.grpc.port}")


def _cases(count: int) -> Iterator[tuple[str, BadMessage]]:
    """(method, message) in turns; each method has its own row of messages."""
    rows = {method: bad_messages(SEED, count, messages) for method, messages in GOOD.items()}
    for turn in range(count):
        method = TURNS[turn % len(TURNS)]
        yield method, next(rows[method])


async def _alive(rig: GatewayRig) -> None:
    """The gateway serves on and its account balances."""
    assert (await Stream.read(rig.stub.Generate(GOOD["Generate"][2]))).ids()
    ledger = rig.gateway.ledger
    await until(lambda: ledger.running == 0)
    ledger.check()
