"""Generate over real gRPC, through a real gateway, on fake workers: exact tokens, choices, stops, logprobs, usage."""

import json

import pytest
from tests.support.fake_worker import FakeWorker, fake_embedding, fake_tokens
from tests.support.gateway_rig import MODEL, VOCABULARY, GatewayRig, Stream, failure_of, text_worker
from tests.support.text_assets import CHATML, assets_document

from polyfleet.process.logs import JsonFormatter
from polyfleet.text.model_text import ModelText
from polyfleet.v1 import inference_pb2 as pb

TEXT = ModelText(assets_document())
PROMPT = TEXT.encode("the quick fox")


def expected(prompt: list[int], count: int, choice: int = 0) -> list[int]:
    return fake_tokens(prompt, count, choice, VOCABULARY)


async def test_a_text_prompt_streams_the_workers_tokens() -> None:
    async with GatewayRig() as rig:
        await rig.add(text_worker("w-1"))
        stream = await Stream.read(rig.stub.Generate(pb.GenerateRequest(text="the quick fox", max_tokens=40)))
    ids = expected(PROMPT, 40)
    assert stream.ids() == ids
    assert stream.text() == TEXT.decode(ids)
    assert stream.reasons() == {0: pb.FINISH_REASON_LENGTH}
    assert stream.messages[0].request_id.startswith("req-")
    assert not any(message.request_id for message in stream.messages[1:])
    assert stream.workers() == ["w-1"]
    assert stream.usage == pb.Usage(prompt_tokens=len(PROMPT), completion_tokens=40)
    assert not any(message.HasField("usage") for message in stream.messages[:-1])


async def test_a_chat_is_rendered_with_the_models_template() -> None:
    worker = text_worker("w-1")
    messages = [pb.ChatMessage(role="user", content="hi")]
    async with GatewayRig() as rig:
        await rig.add(worker)
        await Stream.read(rig.stub.Generate(pb.GenerateRequest(model=MODEL, messages=messages, max_tokens=1)))
    rendered = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert "im_start" in CHATML
    assert list(worker.started[0].prompt_ids) == TEXT.encode(rendered, add_special_tokens=False)


async def test_every_field_reaches_the_worker() -> None:
    worker = text_worker("w-1")
    sampling = pb.SamplingParams(
        temperature=0.5, top_p=0.75, top_k=7, min_p=0.25, seed=2**64 - 1, repetition_penalty=1.5,
        presence_penalty=-1.5, frequency_penalty=1.25,
    )  # fmt: skip
    request = pb.GenerateRequest(
        token_ids=[1, 2, 3], sampling=sampling, max_tokens=2, min_tokens=1, stop_token_ids=[9, 8], ignore_eos=True,
        logprobs=0, priority=-7, request_id="mine", logit_bias={5: -100, 7: 0.1},
    )  # fmt: skip
    async with GatewayRig() as rig:
        await rig.add(worker)
        stream = await Stream.read(rig.stub.Generate(request))
    (start,) = worker.started
    assert stream.messages[0].request_id == "mine"
    assert start.sampling == sampling
    assert (list(start.prompt_ids), list(start.stop_token_ids), start.max_tokens) == ([1, 2, 3], [9, 8], 2)
    assert (start.ignore_eos, start.logprobs, start.priority, start.request_id) == (True, 0, -7, "mine")
    assert start.min_tokens == 1
    assert dict(start.logit_bias) == {5: -100, 7: 0.1}
    assert start.HasField("logprobs")
    assert start.sequence_id.startswith("mine/0")


async def test_defaults_are_those_of_the_proto_and_a_seed_is_drawn() -> None:
    worker = text_worker("w-1", context_length=64)
    async with GatewayRig() as rig:
        await rig.add(worker)
        for _ in range(2):
            await Stream.read(rig.stub.Generate(pb.GenerateRequest(token_ids=[1, 2, 3])))
    first, second = worker.started
    assert first.sampling.seed != second.sampling.seed
    assert first.sampling == pb.SamplingParams(
        temperature=1, top_p=1, top_k=0, min_p=0, seed=first.sampling.seed, repetition_penalty=1,
        presence_penalty=0, frequency_penalty=0,
    )  # fmt: skip
    assert first.max_tokens == 61  # as many as fit
    assert not first.HasField("logprobs")


async def test_choices_are_merged_and_numbered() -> None:
    worker = text_worker("w-1", token_seconds=0.001)
    async with GatewayRig() as rig:
        await rig.add(worker)
        stream = await Stream.read(rig.stub.Generate(pb.GenerateRequest(token_ids=[5], n=5, max_tokens=20)))
    for choice in range(5):
        assert stream.ids(choice) == expected([5], 20, choice)
        assert stream.workers(choice) == ["w-1"]
    assert stream.reasons() == dict.fromkeys(range(5), pb.FINISH_REASON_LENGTH)
    assert stream.usage == pb.Usage(prompt_tokens=1, completion_tokens=100)
    assert len({start.sampling.seed for start in worker.started}) == 1
    assert sorted(start.choice for start in worker.started) == [0, 1, 2, 3, 4]
    ends = [index for index, message in enumerate(stream.messages) if message.finish_reason]
    begins = {message.choice: index for index, message in reversed(list(enumerate(stream.messages)))}
    assert max(begins.values()) < min(ends)  # no choice waits for another to end


async def test_a_stop_string_across_tokens_ends_the_choice() -> None:
    ids = expected(PROMPT, 60)
    whole = TEXT.decode(ids)
    stop = whole[20:24]
    cut = whole.index(stop)
    worker = text_worker("w-1", token_seconds=0.001)
    async with GatewayRig() as rig:
        await rig.add(worker)
        stream = await Stream.read(
            rig.stub.Generate(pb.GenerateRequest(text="the quick fox", max_tokens=1000, stop=["never", stop]))
        )
        assert stream.text() == whole[:cut]
        assert stream.reasons() == {0: pb.FINISH_REASON_STOP}
        used = len(stream.ids())
        assert stream.ids() == ids[:used]
        assert stop in TEXT.decode(ids[:used])
        assert stop not in TEXT.decode(ids[: used - 1])
        assert stream.usage.completion_tokens == used
        assert worker.sequences == {}  # it was told to stop
    assert len(worker.cancelled) == 1


async def test_end_and_stop_tokens_end_a_choice_well() -> None:
    ids = expected([3], 30)
    async with GatewayRig() as rig:
        await rig.add(text_worker("w-1", end_token_ids=[ids[10]]))
        stream = await Stream.read(rig.stub.Generate(pb.GenerateRequest(token_ids=[3], stop_token_ids=[ids[7]])))
        assert stream.ids() == ids[: ids.index(ids[7])]
        assert stream.reasons() == {0: pb.FINISH_REASON_STOP}
        stream = await Stream.read(rig.stub.Generate(pb.GenerateRequest(token_ids=[3])))
        assert stream.ids() == ids[: ids.index(ids[10])]
        request = pb.GenerateRequest(token_ids=[3], max_tokens=30, ignore_eos=True)
        assert (await Stream.read(rig.stub.Generate(request))).ids() == ids


async def test_logprobs_come_beside_their_tokens() -> None:
    async with GatewayRig() as rig:
        await rig.add(text_worker("w-1"))
        stream = await Stream.read(rig.stub.Generate(pb.GenerateRequest(token_ids=[5], logprobs=2, max_tokens=9)))
    ids = expected([5], 9)
    logprobs = [each for message in stream.messages for each in message.logprobs]
    assert [each.token_id for each in logprobs] == ids
    for token_id, each in zip(ids, logprobs, strict=True):
        assert each.text == TEXT.token_text(token_id)
        assert each.logprob == -0.25
        assert [top.token_id for top in each.top] == [token_id, (token_id + 1) % VOCABULARY]
        assert [top.logprob for top in each.top] == [-0.25, -0.5]
        assert each.top[1].text == TEXT.token_text(each.top[1].token_id)


async def test_a_model_without_tokenizer_takes_and_gives_ids() -> None:
    async with GatewayRig() as rig:
        await rig.add(FakeWorker("w-1"))
        stream = await Stream.read(rig.stub.Generate(pb.GenerateRequest(token_ids=[7, 8], max_tokens=5, logprobs=0)))
    assert stream.ids() == fake_tokens([7, 8], 5)
    assert stream.text() == ""


async def test_embeddings_are_given_in_order_and_normalised() -> None:
    async with GatewayRig() as rig:
        await rig.add(text_worker("w-1"))
        inputs = [pb.EmbedInput(token_ids=[1, 2]), pb.EmbedInput(text="fox"), pb.EmbedInput(token_ids=[2])]
        plain = await rig.stub.Embed(pb.EmbedRequest(inputs=inputs, pooling=pb.POOLING_LAST))
        unit = await rig.stub.Embed(pb.EmbedRequest(inputs=inputs, normalize=True))
    fox = TEXT.encode("fox")
    for got, prompt in zip(plain.embeddings, [[1, 2], fox, [2]], strict=True):
        assert [round(v, 5) for v in got.values] == [round(v, 5) for v in fake_embedding(prompt, 8)]
    assert plain.usage == pb.Usage(prompt_tokens=3 + len(fox))
    for got, raw in zip(unit.embeddings, plain.embeddings, strict=True):
        assert abs(sum(v * v for v in got.values) - 1) < 1e-6
        assert abs(got.values[0] / got.values[1] - raw.values[0] / raw.values[1]) < 1e-6


async def test_tokenize_gives_what_generate_computes() -> None:
    async with GatewayRig() as rig:
        await rig.add(text_worker("w-1"))
        plain = await rig.stub.Tokenize(pb.TokenizeRequest(text="the fox"))
        chat = await rig.stub.Tokenize(pb.TokenizeRequest(messages=[pb.ChatMessage(role="user", content="hi")]))
    assert list(plain.token_ids) == TEXT.encode("the fox")
    assert list(plain.pieces) == TEXT.pieces(plain.token_ids)
    assert chat.token_ids[0] == 1


async def test_models_are_listed_with_their_facts() -> None:
    async with GatewayRig() as rig:
        await rig.add(text_worker("w-1", context_length=128), text_worker("w-2", accelerator="cuda"))
        (model,) = (await rig.stub.ListModels(pb.ListModelsRequest())).models
        assert model == await rig.stub.GetModel(pb.GetModelRequest(name=MODEL))
    assert model == pb.Model(
        name=MODEL, context_length=2048, vocabulary_size=VOCABULARY, ready_workers=2, accelerators=["cpu", "cuda"]
    )


async def test_the_log_names_requests_and_never_says_what_was_in_them(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "polyfleet")
    async with GatewayRig() as rig:
        await rig.add(text_worker("w-1"))
        request = pb.GenerateRequest(text="open sesame", max_tokens=5, request_id="req-logged", stop=["sesame"])
        text = (await Stream.read(rig.stub.Generate(request))).text()
        bad = pb.GenerateRequest(text="open sesame", messages=[pb.ChatMessage(role="sesame", content="sesame")])
        await failure_of(rig.stub.Generate(bad))
    lines = [json.loads(JsonFormatter("gateway").format(record)) for record in caplog.records]
    named = [line for line in lines if line.get("request_id") == "req-logged"]
    (ended,) = [line for line in named if line["message"] == "Request ended."]
    assert (ended["code"], ended["model"], ended["worker_id"]) == ("OK", MODEL, "w-1")
    assert (ended["prompt_tokens"], ended["completion_tokens"]) == (len(TEXT.encode("open sesame")), 5)
    written = "\n".join(map(json.dumps, lines))
    assert "INVALID_ARGUMENT" in written
    assert "sesame" not in written
    assert text not in written
