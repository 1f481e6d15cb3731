"""Every bad input ends with a status that names field and limit, and the gateway serves on."""

import math
from typing import Any

import grpc
import pytest
from tests.support.fake_worker import FakeWorker
from tests.support.gateway_rig import MODEL, VOCABULARY, GatewayRig, Stream, failure_of, text_worker, until
from tests.support.text_assets import assets_document

from polyfleet.v1 import fleet_pb2
from polyfleet.v1 import inference_pb2 as pb

INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND


def request(**changes: object) -> pb.GenerateRequest:
    """A good request with some fields replaced."""
    return pb.GenerateRequest(**({"token_ids": [1, 2], "max_tokens": 4} | changes))  # type: ignore[arg-type]


def sampling(**fields: float) -> pb.GenerateRequest:
    return request(sampling=pb.SamplingParams(**fields))  # type: ignore[arg-type]


def chat(role: str = "user", **fields: Any) -> pb.GenerateRequest:
    return request(token_ids=[], messages=[pb.ChatMessage(role=role, content="x", **fields)])


BAD = [
    (request(token_ids=[]), "text", "exactly one of text, messages and token_ids must be set, not none"),
    (request(text="x"), "token_ids", "must be set, not two"),
    (request(text="x", messages=[pb.ChatMessage(role="user")]), "messages", "must be set, not three"),
    (request(token_ids=[], text=""), "text", "1 character or more"),
    (request(token_ids=[1] * 61), "max_tokens", "at most 3, not 4: this model's maximum context length is 64"),
    (
        request(token_ids=[1] * 64, max_tokens=1),
        "token_ids",
        "is 64 tokens long, which leaves no room",
    ),
    (pb.GenerateRequest(text="x y z " * 99), "text", "no room: this model's maximum context length is 64 tokens"),
    (request(max_tokens=65), "max_tokens", "at most 62"),
    (request(max_tokens=0), "max_tokens", "must be 1 or more, not 0"),
    (request(max_tokens=-5), "max_tokens", "must be 1 or more, not -5"),
    (request(min_tokens=-1), "min_tokens", "must be 0 or more, not -1"),
    (request(min_tokens=5), "min_tokens", "must be at most max_tokens, which is 4, not 5"),
    (pb.GenerateRequest(token_ids=[1, 2], min_tokens=63), "min_tokens", "at most 62, not 63: this model's maximum"),
    (request(token_ids=[VOCABULARY]), "token_ids", f"below the vocabulary size {VOCABULARY}, not {VOCABULARY}"),
    (request(stop_token_ids=[VOCABULARY]), "stop_token_ids", "below the vocabulary size"),
    (request(logit_bias={VOCABULARY: 1}), "logit_bias", f"below the vocabulary size {VOCABULARY}, not {VOCABULARY}"),
    (request(logit_bias={5: -100.5}), "logit_bias[5]", "from -100 to 100, not -100.5"),
    (request(logit_bias={5: math.nan}), "logit_bias[5]", "finite"),
    (sampling(temperature=math.nan), "sampling.temperature", "must be a finite number, not nan"),
    (sampling(temperature=math.inf), "sampling.temperature", "finite"),
    (sampling(temperature=2.5), "sampling.temperature", "from 0 to 2, not 2.5"),
    (sampling(temperature=-0.1), "sampling.temperature", "from 0 to 2"),
    (sampling(top_p=0), "sampling.top_p", "over 0 up to 1, not 0"),
    (sampling(top_p=1.1), "sampling.top_p", "over 0 up to 1"),
    (sampling(top_k=-2), "sampling.top_k", "0 (off) or more, not -2"),
    (sampling(top_k=VOCABULARY + 1), "sampling.top_k", "at most the vocabulary size"),
    (sampling(min_p=1.5), "sampling.min_p", "from 0 to 1"),
    (sampling(min_p=math.nan), "sampling.min_p", "finite"),
    (sampling(repetition_penalty=0), "sampling.repetition_penalty", "over 0 up to 2"),
    (sampling(presence_penalty=-2.1), "sampling.presence_penalty", "from -2 to 2"),
    (sampling(frequency_penalty=3), "sampling.frequency_penalty", "from -2 to 2"),
    (request(n=0), "n", "from 1 to 16, not 0"),
    (request(n=17), "n", "from 1 to 16, not 17"),
    (request(logprobs=21), "logprobs", "from 0 to 20"),
    (request(logprobs=-1), "logprobs", "from 0 to 20"),
    (request(priority=101), "priority", "from -100 to 100"),
    (request(stop=["ok", ""]), "stop[1]", "1 to 256 characters long, not 0"),
    (request(stop=["x" * 257]), "stop[0]", "1 to 256 characters long, not 257"),
    (request(request_id="a b"), "request_id", "128"),
    (request(request_id="x" * 129), "request_id", "128"),
    (chat(role="robot"), "messages[0].role", "must be one of system, user, assistant, tool, not 'robot'"),
    (chat(role=""), "messages[0].role", "must be one of"),
    (chat(name="x" * 65), "messages[0].name", "at most 64"),
]


async def test_bad_requests_name_field_and_limit() -> None:
    worker = text_worker("w-1", context_length=64)
    async with GatewayRig() as rig:
        await rig.add(worker)
        for bad, field, problem in BAD:
            failure = await failure_of(rig.stub.Generate(bad))
            assert failure.code is INVALID, failure
            assert list(failure.fields) == [field], failure
            assert problem in failure.fields[field], failure
            assert failure.message == f"{field}: {failure.fields[field]}."
        assert worker.started == []
        assert len((await Stream.read(rig.stub.Generate(request()))).ids()) == 4
        ledger = rig.gateway.ledger
        assert (ledger.admitted, ledger.failed, ledger.finished) == (len(BAD) + 1, len(BAD), 1)
        ledger.check()


async def test_lists_are_counted_before_anything_is_made_of_them() -> None:
    async with GatewayRig() as rig:
        await rig.add(text_worker("w-1"))
        many = [pb.ChatMessage(role="user", content="x")] * 4097
        for call, field, count in (
            (rig.stub.Generate(pb.GenerateRequest(messages=many)), "messages", 4097),
            (rig.stub.Generate(request(stop=["x"] * 17)), "stop", 17),
            (rig.stub.Generate(request(stop_token_ids=range(65))), "stop_token_ids", 65),
            (rig.stub.Generate(request(logit_bias=dict.fromkeys(range(301), 1))), "logit_bias", 301),
            (rig.stub.Tokenize(pb.TokenizeRequest(messages=many)), "messages", 4097),
            (rig.stub.Embed(pb.EmbedRequest(inputs=[pb.EmbedInput(text="x")] * 9999)), "inputs", 9999),
        ):
            failure = await failure_of(call)
            assert (failure.code, [*failure.fields]) == (INVALID, [field])
            assert failure.fields[field].endswith(f", not {count}")


async def test_a_template_may_refuse_messages() -> None:
    assets = assets_document(chat_template="{{ raise_exception('roles must alternate') }}")
    async with GatewayRig() as rig:
        await rig.add(FakeWorker("w-1", MODEL, assets=assets, vocabulary_size=VOCABULARY))
        failure = await failure_of(rig.stub.Generate(chat()))
    assert (failure.code, [*failure.fields]) == (INVALID, ["messages"])
    assert "roles must alternate" in failure.message


async def test_an_unknown_model_is_not_found_with_the_list() -> None:
    async with GatewayRig() as rig:
        await rig.add(text_worker("w-1"), FakeWorker("w-2", "other"))
        for call in (
            rig.stub.Generate(request(model="absent")),
            rig.stub.Embed(pb.EmbedRequest(model="absent", inputs=[pb.EmbedInput(token_ids=[1])])),
            rig.stub.Tokenize(pb.TokenizeRequest(model="absent", text="x")),
            rig.stub.GetModel(pb.GetModelRequest(name="absent")),
        ):
            failure = await failure_of(call)
            assert failure.code is NOT_FOUND
            assert failure.message == "There is no model 'absent'; served models: fake, other."
        failure = await failure_of(rig.stub.Generate(request()))
        assert (failure.code, [*failure.fields]) == (INVALID, ["model"])
        assert "fake, other" in failure.message
        good = await Stream.read(rig.stub.Generate(request(model="other")))
        assert good.workers() == ["w-2"]


async def test_an_empty_fleet_has_no_model() -> None:
    async with GatewayRig() as rig:
        assert (await failure_of(rig.stub.Generate(request()))).code is NOT_FOUND
        assert (await failure_of(rig.stub.Generate(request(model="x")))).message.endswith("served models: none.")
        assert (await rig.stub.ListModels(pb.ListModelsRequest())).models == []


async def test_a_model_without_tokenizer_refuses_text() -> None:
    async with GatewayRig() as rig:
        await rig.add(FakeWorker("w-1"))
        for bad, field in (
            (request(token_ids=[], text="x"), "text"),
            (chat(), "messages"),
            (request(stop=["x"]), "stop"),
        ):
            failure = await failure_of(rig.stub.Generate(bad))
            assert (failure.code, [*failure.fields]) == (INVALID, [field])
            assert "no tokenizer" in failure.message


async def test_unusable_assets_are_a_failed_precondition() -> None:
    async with GatewayRig() as rig:
        await rig.add(FakeWorker("w-1", assets=b"{}"))
        failure = await failure_of(rig.stub.Generate(request()))
    assert failure.code is grpc.StatusCode.FAILED_PRECONDITION
    assert "tokenizer" in failure.message


async def test_assets_with_another_hash_are_not_used() -> None:
    async with GatewayRig(queue_timeout=0.7) as rig:
        rig.fleet.corrupt = True
        await rig.add(text_worker("w-1"))
        failure = await failure_of(rig.stub.Generate(request()))
        assert failure.code is grpc.StatusCode.UNAVAILABLE
        assert failure.retry_seconds
        assert rig.fleet.fetched >= 2
        fetched, rig.fleet.corrupt = rig.fleet.fetched, False
        await until(lambda: rig.fleet.fetched > fetched)
        await rig.stub.Tokenize(pb.TokenizeRequest(text="x"))


@pytest.mark.parametrize(
    ("inputs", "field"),
    [
        ([], "inputs"),
        ([pb.EmbedInput(text="x")] * 65, "inputs"),
        ([pb.EmbedInput()], "inputs[0]"),
        ([pb.EmbedInput(text="x"), pb.EmbedInput(text="x", token_ids=[1])], "inputs[1]"),
        ([pb.EmbedInput(text="")], "inputs[0].text"),
        ([pb.EmbedInput(token_ids=[VOCABULARY])], "inputs[0].token_ids"),
        ([pb.EmbedInput(token_ids=[1] * 65)], "inputs[0]"),
    ],
)
async def test_bad_embed_inputs(inputs: list[pb.EmbedInput], field: str) -> None:
    async with GatewayRig() as rig:
        await rig.add(text_worker("w-1", context_length=64))
        failure = await failure_of(rig.stub.Embed(pb.EmbedRequest(inputs=inputs)))
        assert (failure.code, [*failure.fields]) == (INVALID, [field])
        await rig.stub.Embed(pb.EmbedRequest(inputs=[pb.EmbedInput(token_ids=[1] * 64)]))


async def test_an_unknown_pooling_and_two_texts() -> None:
    async with GatewayRig() as rig:
        await rig.add(text_worker("w-1"))
        unknown = pb.EmbedRequest(inputs=[pb.EmbedInput(text="x")], pooling=7)  # type: ignore[arg-type]
        assert [*(await failure_of(rig.stub.Embed(unknown))).fields] == ["pooling"]
        both = pb.TokenizeRequest(text="x", messages=[pb.ChatMessage(role="user")])
        assert [*(await failure_of(rig.stub.Tokenize(both))).fields] == ["text"]
        assert [*(await failure_of(rig.stub.Tokenize(pb.TokenizeRequest()))).fields] == ["text"]


async def test_a_message_over_the_limit_is_refused() -> None:
    async with GatewayRig(max_message_bytes=10_000) as rig:
        await rig.add(text_worker("w-1"))
        failure = await failure_of(rig.stub.Generate(pb.GenerateRequest(text="x" * 10_001)))
        assert failure.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len((await Stream.read(rig.stub.Generate(request()))).ids()) == 4


async def test_a_model_that_is_loading_is_listed_and_waited_for() -> None:
    async with GatewayRig() as rig:
        rig.fleet.deployments = [
            fleet_pb2.ModelDeployment(name="d", model_name=MODEL, workers=1, created_unix_seconds=9)
        ]
        rig.fleet.publish()
        while not (listed := (await rig.stub.ListModels(pb.ListModelsRequest())).models):
            pass
        reason = "Model fake has none of its workers now: 1 wanted, 0 there."
        assert listed[0] == pb.Model(name=MODEL, created_unix_seconds=9, reason=reason)
        call = rig.stub.Generate(request(model=MODEL))
        await rig.add(text_worker("w-1"))
        assert len((await Stream.read(call)).ids()) == 4
