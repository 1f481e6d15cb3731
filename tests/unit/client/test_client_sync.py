"""`Client` against a scripted service: whole answers, streams, deadlines, values."""

import math
from typing import Any

import pytest
from tests.support.scripted_inference import Script, endless

from polyfleet import client as pf
from polyfleet.v1 import inference_pb2 as pb


def test_generate_gathers_the_choices(client: pf.Client, script: Script) -> None:
    top = pf.TokenLogprobs(2, "z", -1.5)
    assert client.generate("hello", n=2, logprobs=1) == pf.Completion(
        request_id="req-1",
        worker_ids=("w-1", "w-2"),
        choices=(
            pf.Choice(0, "ab", (1, 3), (pf.TokenLogprobs(1, "a", -0.5, (top,)),), pf.FinishReason.LENGTH),
            pf.Choice(1, "x", (7, 8), (), pf.FinishReason.STOP),
        ),
        usage=pf.Usage(prompt_tokens=5, cached_tokens=2, completion_tokens=4),
    )
    assert script.calls == [pb.GenerateRequest(text="hello", n=2, logprobs=1)]
    assert script.metadata[0]["authorization"] == "Bearer secret"
    assert script.seconds_left[0] > 1e9


def test_completion_speaks_for_its_first_choice(client: pf.Client) -> None:
    answer = client.generate("hello")
    assert (answer.text, answer.token_ids, answer.finish_reason) == ("ab", (1, 3), "length")
    assert answer.usage is not None
    assert answer.usage.total_tokens == 9


def test_every_option_reaches_its_field(client: pf.Client, script: Script) -> None:
    sampling: Any = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "min_p": 0.1,
        "seed": 2**64 - 1,
        "repetition_penalty": 1.1,
        "presence_penalty": -1.0,
        "frequency_penalty": 1.5,
    }
    rest: Any = {
        "model": "m",
        "max_tokens": 7,
        "min_tokens": 2,
        "logit_bias": {5: -100, 7: 0.5},
        "stop": ["x", "y"],
        "stop_token_ids": [4, 5],
        "ignore_eos": True,
        "n": 1,
        "logprobs": 0,
        "priority": -3,
        "request_id": "mine",
    }
    brief = pb.ChatMessage(role="system", content="be brief")
    client.chat([{"role": "system", "content": "be brief"}, pf.Message("user", "hi", name="ann")], **sampling, **rest)
    assert script.calls[0] == pb.GenerateRequest(
        messages=[brief, pb.ChatMessage(role="user", content="hi", name="ann")],
        sampling=pb.SamplingParams(**sampling),
        **rest,
    )


@pytest.mark.parametrize("value", [{"5": 1}, {-1: 1}, {5: "x"}, [5]])
def test_biases_that_cannot_be_sent_are_refused(client: pf.Client, value: Any) -> None:
    with pytest.raises(pf.InvalidArgumentError, match="logit_bias"):
        client.generate("hello", logit_bias=value)


@pytest.mark.parametrize("value", ["yes", {"yes": 1}, 5])
@pytest.mark.parametrize("name", ["choices", "tools", "tool_names", "stop_token_ids", "messages"])
def test_what_is_no_list_is_not_taken_apart(client: pf.Client, script: Script, name: str, value: Any) -> None:
    with pytest.raises(pf.InvalidArgumentError, match=rf"{name}: must be a list, not .*(yes|5)"):
        client.generate(**{name: value})
    assert not script.calls


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("hi", r"messages\[0\]: must be a mapping, not 'hi'"),
        (None, r"messages\[0\]: must be a mapping, not None"),
        ({"role": "user", "content": [5]}, r"messages\[0\].content\[0\]: must be a text, an Image"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, r"messages\[0\].content\[0\].text: can't be 5"),
        ({"role": "user", "tool_calls": "f"}, r"messages\[0\].tool_calls: must be a list, not 'f'"),
        ({"role": "user", "tool_calls": ["f"]}, r"messages\[0\].tool_calls\[0\]: must be a mapping, not 'f'"),
        ({"role": "user", "tool_calls": [{"function": "f"}]}, r"tool_calls\[0\].function: must be a mapping, not 'f'"),
    ],
)
def test_what_is_no_message_is_refused_by_its_place(
    client: pf.Client, script: Script, message: Any, problem: str
) -> None:
    with pytest.raises(pf.InvalidArgumentError, match=problem):
        client.chat([message])
    assert not script.calls


@pytest.mark.parametrize("name", ["tools", "json_schema", "template_arguments"])
def test_what_is_no_json_is_refused_by_name(client: pf.Client, script: Script, name: str) -> None:
    value: Any = [{"a": {1}}]
    with pytest.raises(pf.InvalidArgumentError, match=rf"{name}: can't be written as JSON"):
        client.generate("hello", **{name: value})
    assert not script.calls


def test_what_is_no_list_of_texts_is_not_embedded(client: pf.Client, script: Script) -> None:
    no_list: Any = 5
    with pytest.raises(pf.InvalidArgumentError, match="inputs: must be a list, not 5"):
        client.embed(no_list)
    with pytest.raises(pf.InvalidArgumentError, match="texts: must be a list, not 5"):
        client.encode(no_list)
    assert not script.calls


def test_contents_of_several_parts(client: pf.Client, script: Script) -> None:
    url = {"type": "image_url", "image_url": {"url": "data:image/png;base64,ZmlsZQ=="}}
    client.chat([pf.Message("user", (pf.Image(b"file"), "hi")), {"role": "user", "content": [url, "hi"]}])
    parts = [pb.ContentPart(image=b"file"), pb.ContentPart(text="hi")]
    assert script.calls[0].messages == [pb.ChatMessage(role="user", parts=parts)] * 2
    shown: tuple[Any, ...] = (pf.Image(url="https://a/b.png"), {"type": "image_url", "image_url": "https://a/b.png"})
    client.chat([pf.Message("user", (each,)) for each in shown])
    assert script.calls[1].messages == [
        pb.ChatMessage(role="user", parts=[pb.ContentPart(image_url="https://a/b.png")])
    ] * len(shown)
    for wrong in ({"type": "image_url", "image_url": "file:///a"}, {"type": "audio"}, {"type": "image_url"}):
        with pytest.raises(pf.InvalidArgumentError, match=r"messages\[0\].content\[0\]"):
            client.chat([{"role": "user", "content": [wrong]}])


def test_a_seed_of_minus_one_is_none(client: pf.Client, script: Script) -> None:
    client.generate("hello", seed=-1, top_k=-1)
    assert script.calls[0].sampling == pb.SamplingParams(top_k=-1)


def test_one_stop_string_is_not_split_into_letters(client: pf.Client, script: Script) -> None:
    client.generate(token_ids=[1, 2], stop="end", temperature=None)
    assert script.calls[0] == pb.GenerateRequest(token_ids=[1, 2], stop=["end"])


def test_two_prompt_kinds_reach_the_gateway_which_refuses_them(client: pf.Client, script: Script) -> None:
    client.generate("", token_ids=[1])
    assert script.calls[0].HasField("text")
    assert script.calls[0].token_ids == [1]


def test_stream_gives_each_delta(client: pf.Client) -> None:
    with client.stream("hello") as stream:
        deltas = list(stream)
    assert [(d.choice, d.text, d.finish_reason) for d in deltas] == [
        (0, "a", None),
        (1, "x", "stop"),
        (0, "b", "length"),
        (0, "", None),
    ]
    assert deltas[-1].usage == pf.Usage(5, 2, 4)
    assert stream.transcript.request_id == "req-1"
    assert list(stream) == []


def test_close_cancels_the_call(client: pf.Client, script: Script) -> None:
    script.steps = [endless]
    stream = client.stream("hello")
    assert next(stream).text == "a"
    stream.close()
    assert script.ended.wait(10)
    assert list(stream) == []
    stream.close()


def test_timeout_becomes_the_deadline(client: pf.Client, script: Script) -> None:
    script.steps = [endless]
    with pytest.raises(pf.DeadlineExceededError):
        client.generate("hello", timeout=0.3)
    assert 0 < script.seconds_left[0] <= 0.4  # gRPC rounds up to tenths of a second


def test_clients_own_timeout_holds_for_calls_that_name_none(script: Script) -> None:
    with pf.Client(script.address, timeout=30) as client:
        client.generate("hello")
        client.generate("hello", timeout=60)
    first, second = script.seconds_left
    assert first <= 30.1 < second  # gRPC rounds up to tenths of a second


def test_unknown_option_is_a_type_error(client: pf.Client, script: Script) -> None:
    with pytest.raises(TypeError, match="unknown option 'temprature'"):
        client.generate("hello", temprature=1.0)  # type: ignore[call-arg]
    assert script.calls == []


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"choices": []}, "structure.choices"),
        ({"max_tokens": 2**40}, "max_tokens"),
        ({"seed": -2}, "sampling.seed"),
        ({"temperature": "hot"}, "sampling.temperature"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"token_ids": [2**32]}, "token_ids"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "text": "hi"}]}, "messages[0].text"),
    ],
)
def test_value_that_no_field_can_hold(client: pf.Client, script: Script, options: dict[str, Any], field: str) -> None:
    with pytest.raises(pf.InvalidArgumentError) as caught:
        client.generate(**options)
    assert [v.field for v in caught.value.field_violations] == [field]
    assert script.calls == []


def test_values_are_judged_by_the_gateway(client: pf.Client, script: Script) -> None:
    client.generate("hello", temperature=math.nan, max_tokens=-1)
    assert math.isnan(script.calls[0].sampling.temperature)
    assert script.calls[0].max_tokens == -1


def test_embed(client: pf.Client, script: Script) -> None:
    answer = pb.EmbedResponse(embeddings=[pb.Embedding(values=[0.5, 1.0])], usage=pb.Usage(prompt_tokens=3))
    script.steps = [lambda request, context: answer]
    assert client.embed(["hello", [1, 2]], model="m", pooling="last", normalize=True) == pf.Embeddings(
        ((0.5, 1.0),), pf.Usage(3, 0, 0)
    )
    assert script.calls[0] == pb.EmbedRequest(
        model="m",
        inputs=[pb.EmbedInput(text="hello"), pb.EmbedInput(token_ids=[1, 2])],
        pooling=pb.POOLING_LAST,
        normalize=True,
    )
    client.embed("hello")
    assert script.calls[1] == pb.EmbedRequest(inputs=[pb.EmbedInput(text="hello")])
    with pytest.raises(pf.InvalidArgumentError, match="pooling"):
        client.embed("hello", pooling="max")


def test_encode(client: pf.Client, script: Script) -> None:
    """In calls of a batch each; a single text gives a single vector."""
    vectors = [pb.Embedding(values=[0.5, 1.0]), pb.Embedding(values=[1.0, 0.5])]
    script.steps = [lambda request, context: pb.EmbedResponse(embeddings=vectors[: len(request.inputs)])]
    assert client.encode(["a", "b", "c"], batch_size=2) == ((0.5, 1.0), (1.0, 0.5), (0.5, 1.0))
    assert [len(each.inputs) for each in script.calls] == [2, 1]
    assert client.encode("a", normalize=False, model="m") == (0.5, 1.0)
    assert script.calls[2] == pb.EmbedRequest(inputs=[pb.EmbedInput(text="a")], model="m")
    with pytest.raises(pf.InvalidArgumentError, match="batch_size"):
        client.encode("a", batch_size=65)


def test_rerank(client: pf.Client, script: Script) -> None:
    ranked = [pb.RankedDocument(index=1, relevance_score=0.75)]
    script.steps = [lambda request, context: pb.RerankResponse(results=ranked, usage=pb.Usage(prompt_tokens=3))]
    answer = pf.Ranking((pf.Ranked(1, 0.75),), pf.Usage(3))
    assert client.rerank("q", ["a", "b"], model="m", top_n=1, max_tokens_per_doc=9) == answer
    wanted = pb.RerankRequest(query="q", documents=["a", "b"], model="m", top_n=1, max_tokens_per_doc=9)
    assert script.calls == [wanted]
    with pytest.raises(pf.InvalidArgumentError, match="top_n"):
        client.rerank("q", ["a"], top_n=-1)


def test_tokenize(client: pf.Client, script: Script) -> None:
    script.steps = [lambda request, context: pb.TokenizeResponse(token_ids=[1, 2], pieces=["he", "llo"])]
    assert client.tokenize("hello", add_special_tokens=False) == pf.Tokens((1, 2), ("he", "llo"))
    client.tokenize(messages=[pf.Message("user", "hi")], model="m")
    client.tokenize(messages=[{"role": "user", "content": "hi"}], tools=[{"a": 1}, "{}"], template_arguments={"b": 2})
    assert script.calls == [
        pb.TokenizeRequest(text="hello", add_special_tokens=False),
        pb.TokenizeRequest(model="m", messages=[pb.ChatMessage(role="user", content="hi")]),
        pb.TokenizeRequest(
            messages=[pb.ChatMessage(role="user", content="hi")],
            tools=['{"a": 1}', "{}"],
            template_arguments='{"b": 2}',
        ),
    ]


def test_models(client: pf.Client, script: Script) -> None:
    model = pb.Model(name="m", context_length=8, vocabulary_size=9, ready_workers=1, accelerators=["cpu"])
    script.steps = [lambda request, context: pb.ListModelsResponse(models=[model]), lambda request, context: model]
    expected = pf.Model("m", 8, 9, 1, ("cpu",), 0)
    assert client.models() == [expected]
    assert client.model("m") == expected
    assert script.calls == [pb.ListModelsRequest(), pb.GetModelRequest(name="m")]
