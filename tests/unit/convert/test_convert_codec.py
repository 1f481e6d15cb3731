"""A dataclass and its message have the same fields, and nothing is lost between them."""

import random
from typing import Any

import pytest
from google.protobuf.message import Message
from msgspec.structs import replace

from polyfleet.convert import inference as convert
from polyfleet.convert.codec import Codec
from polyfleet.convert.sequences import delta_message, sequence_request, sequence_update, start_message
from polyfleet.v1 import inference_pb2 as pb
from polyfleet.v1 import worker_pb2
from polyfleet.wire.answers import (
    Delta,
    Embeddings,
    FinishReason,
    Model,
    SampledToken,
    SequenceUpdate,
    TokenLogprobs,
    Tokens,
    Usage,
)
from polyfleet.wire.requests import (
    EmbedRequest,
    GenerateRequest,
    Pooling,
    SequenceRequest,
    TokenizeRequest,
)
from polyfleet.wire.requests import Message as ChatMessage
from polyfleet.wire.sampling import SamplingParams


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (SamplingParams, pb.SamplingParams),
        (GenerateRequest, pb.GenerateRequest),
        (EmbedRequest, pb.EmbedRequest),
        (TokenizeRequest, pb.TokenizeRequest),
        (ChatMessage, pb.ChatMessage),
        (SequenceRequest, worker_pb2.StartSequence),
        (Delta, pb.GenerateResponse),
        (TokenLogprobs, pb.TokenLogprobs),
        (Usage, pb.Usage),
        (Tokens, pb.TokenizeResponse),
        (Model, pb.Model),
        (SampledToken, worker_pb2.SampledLogprobs),
    ],
)
def test_no_field_of_a_message_is_forgotten(kind: type[Any], message: type[Message]) -> None:
    known = {name for base in kind.__mro__ for name in getattr(base, "__annotations__", ())}
    known |= {"parts"} if kind is ChatMessage else set()  # which `content` has, too
    assert set(message.DESCRIPTOR.fields_by_name) <= known


def test_every_enumerator_has_its_member() -> None:
    assert {f"POOLING_{each.name}" for each in Pooling} == set(pb.Pooling.keys()) - {"POOLING_UNSPECIFIED"}
    reasons = {f"FINISH_REASON_{each.name}" for each in FinishReason if each is not FinishReason.UNKNOWN}
    assert reasons == set(pb.FinishReason.keys()) - {"FINISH_REASON_UNSPECIFIED"}


def some(rng: random.Random, value: Any, absent: Any) -> Any:
    return value if rng.random() < 0.5 else absent


@pytest.mark.parametrize("seed", range(20))
def test_a_sequence_arrives_as_it_was_asked_for(seed: int) -> None:
    rng = random.Random(seed)
    sampling = SamplingParams(
        *(rng.uniform(0, 2), rng.random(), rng.randrange(9), rng.random(), rng.randrange(2**64)),
        *(rng.uniform(0.1, 2), rng.uniform(-2, 2), some(rng, 0.5, 0.0)),
    )
    request = SequenceRequest(
        "r/0", (5, 2**32 - 1), sampling, max_tokens=rng.randrange(1, 99), generated_ids=some(rng, (7, 8), ()),
        choice=rng.randrange(3), stop_token_ids=some(rng, (4, 9), ()), ignore_eos=some(rng, True, False),
        logprobs=some(rng, rng.randrange(3), None), priority=rng.randrange(-9, 9), cache_salt=some(rng, b"\0x", b""),
        request_id=some(rng, "r", ""), traceparent=some(rng, "00-1", ""), tracestate=some(rng, "a=b", ""),
        logit_bias=some(rng, {0: -100.0, 2**32 - 1: 0.1}, {}),
    )  # fmt: skip
    wire = worker_pb2.StartSequence.FromString(start_message(request).SerializeToString())
    assert sequence_request(wire) == request
    assert len(wire.sampling.ListFields()) == len(wire.sampling.DESCRIPTOR.fields)  # defaults are stated too


def test_news_of_a_sequence_arrive_as_they_were_told() -> None:
    tokens = (SampledToken(5, -0.5, (5, 9), (-0.5, -1.0)), SampledToken(6, 0.0))
    update = SequenceUpdate("1:a", tokens, FinishReason.LENGTH, "", 3, 0.5, ())
    assert sequence_update(delta_message(update, "a", logprobs=True)) == replace(update, sequence_id="a", code=0)
    bare = tuple(SampledToken(token.token_id) for token in tokens)
    assert sequence_update(delta_message(update, "a", logprobs=False)).tokens == bare
    vector = SequenceUpdate("1:a", (), FinishReason.STOP, embedding=(1.0, -2.0))
    assert sequence_update(delta_message(vector, "a", logprobs=False)).embedding == (1.0, -2.0)
    failed = SequenceUpdate("1:a", error="not finite")
    told = sequence_update(delta_message(failed, "a", logprobs=False))
    assert (told.error, told.code, told.finish_reason, told.broken) == ("not finite", 13, None, False)
    broken = SequenceUpdate("1:a", error="device lost", broken=True)
    assert sequence_update(delta_message(broken, "a", logprobs=False)).broken


def test_a_finish_reason_of_a_newer_version_ends_a_sequence_all_the_same() -> None:
    newer = worker_pb2.SequenceDelta(sequence_id="a", finish_reason=77)  # type: ignore[arg-type]
    assert sequence_update(newer).finish_reason is FinishReason.STOP
    assert convert.delta_of(pb.GenerateResponse(finish_reason=77)).finish_reason is FinishReason.UNKNOWN  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "more",
    [{}, {"finish_reason": pb.FINISH_REASON_LENGTH}, {"cached_tokens": 3}, {"queue_seconds": 0.5},
     {"logprobs": [worker_pb2.SampledLogprobs(logprob=-0.5)]}, {"error": worker_pb2.SequenceError(code=14)}],
)  # fmt: skip
def test_one_token_arrives_with_whatever_comes_beside_it(more: dict[str, Any]) -> None:
    update = sequence_update(worker_pb2.SequenceDelta(sequence_id="a", token_ids=[5], **more))
    assert (update.sequence_id, update.tokens) == ("a", (SampledToken(5, -0.5 if "logprobs" in more else 0.0),))
    assert (update.finish_reason is FinishReason.LENGTH) == ("finish_reason" in more)
    assert (bool(update.error), bool(update.cached_tokens), bool(update.queue_seconds)) == tuple(
        name in more for name in ("error", "cached_tokens", "queue_seconds")
    )


def test_answers_of_one_plain_token_differ_in_all_that_they_say() -> None:
    plain = [Delta(choice, text, (token,)) for choice in (0, 1) for text in ("x", "") for token in (1, 2)]
    first = [convert.generate_response(delta).SerializeToString() for delta in plain]
    assert [convert.generate_response(delta).SerializeToString() for delta in plain] == first
    assert [convert.delta_of(pb.GenerateResponse.FromString(data)) for data in first] == plain
    told = plain[0]._replace(worker_id="w", finish_reason=FinishReason.STOP)
    assert convert.delta_of(convert.generate_response(told)) == told


def test_an_error_without_words_is_one() -> None:
    delta = worker_pb2.SequenceDelta(sequence_id="a", error=worker_pb2.SequenceError(code=14))
    assert sequence_update(delta).error
    assert sequence_update(delta).code == 14


def test_answers_arrive_as_they_were_given() -> None:
    top = (TokenLogprobs(3, "a", -0.5), TokenLogprobs(4, "\ufffd", -1.0, (), b"\xf0"))
    delta = Delta(1, "x", (3,), (TokenLogprobs(3, "a", -0.5, top),), FinishReason.STOP, "r", "w", Usage(1, 2, 3))
    assert convert.delta_of(convert.generate_response(delta)) == delta
    assert convert.delta_of(convert.generate_response(Delta(0))) == Delta(0)
    assert convert.delta_of(convert.generate_response(Delta(0, usage=Usage(0)))).usage == Usage(0)
    embeddings = Embeddings(((1.0, 2.0), (0.0, -1.0)), Usage(2))
    assert convert.embeddings_of(convert.embed_response(embeddings)) == embeddings
    tokens = Tokens((1, 2), ("a", "b"))
    assert convert.tokens_of(convert.tokenize_response(tokens)) == tokens
    model = Model("m", 5, 6, 1, ("cpu", "cuda"), 7, "why", {"temperature": 0.5, "top_k": 0})
    assert convert.model_of(convert.model_message(model)) == model


def test_what_a_request_leaves_out_has_the_documented_default() -> None:
    assert convert.generate_request(pb.GenerateRequest()) == GenerateRequest()
    assert convert.embed_request(pb.EmbedRequest()) == EmbedRequest()
    assert convert.tokenize_request(pb.TokenizeRequest()) == TokenizeRequest()
    stated = pb.GenerateRequest(text="", n=0, logprobs=0, priority=0, sampling=pb.SamplingParams(seed=0, top_k=-1))
    request = convert.generate_request(stated)
    assert (request.text, request.n, request.logprobs, request.seed, request.sampling.top_k) == ("", 0, 0, 0, 0)
    assert request.left_out == {"temperature", "top_p", "min_p", "repetition_penalty"}


def test_messages_that_are_absent_are_read_where_there_must_be_one() -> None:
    assert sequence_request(worker_pb2.StartSequence(sequence_id="a", prompt_ids=[1])).sampling == SamplingParams()


def test_what_is_told_is_not_read() -> None:
    codec = Codec(Usage, pb.Usage)
    assert codec.value(pb.Usage(prompt_tokens=5, cached_tokens=4), cached_tokens=1) == Usage(5, 1)
    assert codec.message(Usage(5, 4), cached_tokens=1) == pb.Usage(prompt_tokens=5, cached_tokens=1)
