"""From bodies to the core's requests: every field lands, contradictions are refused by name."""

from typing import Any

import msgspec
import pytest

from polyfleet.gateway.http.bodies import ChatBody, CompletionBody, EmbeddingsBody
from polyfleet.gateway.http.decoding import decode, decode_inputs
from polyfleet.gateway.http.openai.translate import chat_request, completion_requests, embed_request
from polyfleet.wire.limits import FieldError
from polyfleet.wire.requests import EmbedInput, EmbedRequest, GenerateRequest, Message, Pooling
from polyfleet.wire.sampling import SamplingParams

USER = {"role": "user", "content": "hi"}


def chat(**fields: Any) -> GenerateRequest:
    return chat_request(decode(msgspec.json.encode({"messages": [USER], **fields}), ChatBody), "r")


def complete(prompt: Any, **fields: Any) -> list[GenerateRequest]:
    return completion_requests(decode(msgspec.json.encode({"prompt": prompt, **fields}), CompletionBody), "r")


def embed(value: Any, **fields: Any) -> EmbedRequest:
    return embed_request(decode(msgspec.json.encode({"input": value, **fields}), EmbeddingsBody), "r")


def test_defaults_are_the_cores() -> None:
    assert chat() == GenerateRequest(messages=(Message("user", "hi"),), request_id="r")
    assert complete("hi") == [GenerateRequest(text="hi", max_tokens=16, request_id="r")]


def test_nulls_are_defaults() -> None:
    names = ("model", "stream", "n", "seed", "stop", "temperature", "top_p", "max_tokens", "logprobs", "top_k", "user")
    assert chat(**dict.fromkeys(names)) == chat()


def test_what_is_left_out_or_null_is_the_models_to_choose() -> None:
    everything = {"temperature", "top_p", "top_k", "min_p", "repetition_penalty"}
    assert chat().left_out == everything
    assert chat(temperature=1, top_k=None, min_p=0).left_out == everything - {"temperature", "min_p"}
    assert complete("hi", top_p=1)[0].left_out == everything - {"top_p"}


def test_every_sampling_field_lands() -> None:
    fields: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": -1.0,
        "frequency_penalty": 1.5,
    }
    wanted = chat(
        model="m",
        n=2,
        seed=7,
        stop=["x", "y"],
        stop_token_ids=[4],
        ignore_eos=True,
        priority=-3,
        max_tokens=9,
        min_tokens=4,
        logit_bias={"5": -100, "7": 0.5},
        **fields,
    )
    assert wanted == GenerateRequest(
        model="m",
        messages=(Message("user", "hi"),),
        sampling=SamplingParams(**fields),
        seed=7,
        max_tokens=9,
        min_tokens=4,
        logit_bias={5: -100.0, 7: 0.5},
        stop=("x", "y"),
        stop_token_ids=(4,),
        ignore_eos=True,
        n=2,
        priority=-3,
        request_id="r",
    )


def test_minus_one_states_no_seed_and_no_top_k() -> None:
    assert chat(seed=-1) == chat()
    assert chat(top_k=-1) == chat(top_k=0)
    assert "top_k" not in chat(top_k=-1).left_out  # it is off, whatever the model's files say
    assert chat(seed=-2).seed == -2  # for the core to refuse


def test_no_logprobs_may_be_asked_for_in_two_ways() -> None:
    assert chat(logprobs=False, top_logprobs=0) == chat()


def test_one_stop_string() -> None:
    assert chat(stop="end").stop == ("end",)


@pytest.mark.parametrize(
    ("fields", "max_tokens"),
    [({"max_tokens": 3}, 3), ({"max_completion_tokens": 4}, 4), ({"max_tokens": 5, "max_completion_tokens": 5}, 5)],
)
def test_both_names_of_max_tokens(fields: dict[str, int], max_tokens: int) -> None:
    assert chat(**fields).max_tokens == max_tokens


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 5}, 5),
    ],
)
def test_chat_logprobs(fields: dict[str, Any], logprobs: int | None) -> None:
    assert chat(**fields).logprobs == logprobs


def test_completion_logprobs() -> None:
    assert [complete("a", **f)[0].logprobs for f in ({}, {"logprobs": 0}, {"logprobs": 5})] == [None, 0, 5]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"top_logprobs": 3, "logprobs": False}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        (
            {"messages": [USER, {"role": "assistant", "content": [{"type": "refusal"}]}]},
            "messages[1].content[0].refusal",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].image_url"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        (
            {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}]},
            "messages[0].tool_calls[0].function",
        ),
    ],
)
def test_chat_contradictions_name_the_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(FieldError) as caught:
        chat(**fields)
    assert caught.value.field == field


def test_lists_are_counted_before_anything_is_made_of_them() -> None:
    with pytest.raises(FieldError, match="messages: must be at most 4096, not 4097"):
        chat(messages=[{"role": "user", "content": "x"}] * 4097)
    for field in ("prompt", "input"):
        for item in ("x", [1]):
            with pytest.raises(FieldError, match=f"{field}: must be at most 64, not 65"):
                decode_inputs(msgspec.Raw(msgspec.json.encode([item] * 65)), field, 64)
    assert embed([1] * 65).inputs[0].token_ids == (1,) * 65


def test_messages() -> None:
    wanted = chat(
        messages=[
            {"role": "developer", "content": "be brief"},
            {
                "role": "user",
                "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
                "name": "ann",
            },
            {"role": "assistant", "content": "yes", "refusal": None, "tool_calls": []},
            {"role": "tool", "content": "42", "tool_call_id": "c"},
        ]
    )
    assert wanted.messages == (
        Message("system", "be brief"),
        Message("user", ("one", "two"), "ann"),
        Message("assistant", "yes"),
        Message("tool", "42", tool_call_id="c"),
    )


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", [("a", ())]),
        ([1, 2], [(None, (1, 2))]),
        (["a", "b"], [("a", ()), ("b", ())]),
        ([[1], [2, 3]], [(None, (1,)), (None, (2, 3))]),
        (["a"], [("a", ())]),
    ],
)
def test_prompt_shapes(prompt: Any, expected: list[Any]) -> None:
    assert [(wanted.text, wanted.token_ids) for wanted in complete(prompt)] == expected


def test_several_prompts_have_request_ids_of_their_own() -> None:
    assert [wanted.request_id for wanted in complete(["a", "b"])] == ["r-0", "r-1"]


@pytest.mark.parametrize("prompt", [[], [[]], ["a", 1], [[1], []], [[1], "a"], ["a"] * 65])
def test_prompt_that_is_none(prompt: Any) -> None:
    with pytest.raises(FieldError) as caught:
        complete(prompt)
    assert caught.value.field == "prompt"


def test_best_of_equal_to_n_asks_for_nothing() -> None:
    assert complete("a", best_of=2, n=2)[0].n == 2
    assert complete("a", best_of=1)[0].n == 1
    with pytest.raises(FieldError, match="best_of"):
        complete("a", best_of=2)


def test_embeddings() -> None:
    assert embed("a") == EmbedRequest(inputs=(EmbedInput(text="a"),), normalize=True, request_id="r")
    assert embed(["a", "b"], model="m", pooling="last", normalize=False, user="u") == EmbedRequest(
        model="m",
        inputs=(EmbedInput(text="a"), EmbedInput(text="b")),
        pooling=Pooling.LAST,
        normalize=False,
        request_id="r",
    )
    assert (embed("a", dimensions=2).dimensions, embed("a", pooling="cls").pooling) == (2, Pooling.CLS)
    with pytest.raises(FieldError, match="dimensions: must be 1 or more, not 0"):
        embed("a", dimensions=0)
    assert embed([[1, 2], [3]]).inputs == (EmbedInput(token_ids=(1, 2)), EmbedInput(token_ids=(3,)))
    with pytest.raises(FieldError, match="input"):
        embed([])
