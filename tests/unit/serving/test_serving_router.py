"""Whose news is whose, and how messages translate."""

import pytest

from polyfleet.convert.sequences import delta_message, sequence_request, start_message
from polyfleet.engine.facts import EngineStatus
from polyfleet.serving.convert import options_of, status_of
from polyfleet.serving.messages import Refusal, StepNews
from polyfleet.serving.router import SequenceRouter
from polyfleet.serving.session import GatewaySession
from polyfleet.v1 import fleet_pb2 as fleet
from polyfleet.v1 import inference_pb2 as inference
from polyfleet.v1 import worker_pb2 as pb
from polyfleet.wire.answers import FinishReason, SampledToken, SequenceUpdate
from polyfleet.wire.limits import FieldError
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import Pooling, SequenceRequest
from polyfleet.wire.sampling import SamplingParams


def news(*updates: SequenceUpdate, refusals: tuple[Refusal, ...] = ()) -> StepNews:
    return StepNews(list(updates), list(refusals), EngineStatus())


def token(sequence_id: str, value: int, **more: object) -> SequenceUpdate:
    return SequenceUpdate(sequence_id, (SampledToken(value, -0.5),), **more)  # type: ignore[arg-type]


def connect(router: SequenceRouter, session: GatewaySession, name: str) -> str:
    engine_id = router.engine_name(name)
    router.connect(session, SequenceRequest(name, (1,)), engine_id)
    return engine_id


async def tokens_of(session: GatewaySession) -> list[tuple[str, list[int]]]:
    return [(each.sequence_id, list(each.token_ids)) for each in await session.take(0)]


async def test_two_sessions_may_use_one_id() -> None:
    router, one, two = SequenceRouter(), GatewaySession(), GatewaySession()
    router.sessions |= {one, two}
    first, second = connect(router, one, "r/0"), connect(router, two, "r/0")
    router.deliver(news(token(first, 1), token(second, 2)))
    router.deliver(news(token(first, 3, finish_reason=FinishReason.LENGTH)))
    assert await tokens_of(one) == [("r/0", [1, 3])]
    assert await tokens_of(two) == [("r/0", [2])]
    assert len(router) == 1
    assert not router.quiet
    assert router.disconnect(two, "r/0") == second
    assert router.quiet


async def test_late_news_of_a_cancelled_sequence_reaches_nobody() -> None:
    router, session = SequenceRouter(), GatewaySession()
    old = connect(router, session, "a")
    assert router.disconnect(session, "a") == old
    assert router.disconnect(session, "a") is None
    new = connect(router, session, "a")
    router.deliver(news(token(old, 1), token(new, 2), refusals=(Refusal(old, "late"),)))
    assert await tokens_of(session) == [("a", [2])]


async def test_errors_and_refusals_end_a_sequence_with_their_code() -> None:
    router, session = SequenceRouter(), GatewaySession()
    failed, refused, cut = (connect(router, session, name) for name in ("f", "r", "c"))
    assert cut != failed
    router.deliver(news(SequenceUpdate(failed, error="not finite"), refusals=(Refusal(refused, "max_tokens: no"),)))
    router.fail_all(14, "The worker is stopping.")
    errors = [(each.sequence_id, each.error.code, each.error.message) for each in await session.take(0)]
    assert errors == [("f", 13, "not finite"), ("r", 3, "max_tokens: no"), ("c", 14, "The worker is stopping.")]
    connect(router, session, "b")
    router.fail_all(14, "The engine ended.", broken=True)
    assert [each.error.broken for each in await session.take(0)] == [True]
    assert not session.open
    assert not len(router)


def test_a_start_becomes_the_engines_request_whole() -> None:
    sampling = inference.SamplingParams(
        temperature=0.5, top_p=0.9, top_k=3, min_p=0.1, seed=2**64 - 1,
        repetition_penalty=1.1, presence_penalty=0.2, frequency_penalty=-0.3,
    )  # fmt: skip
    start = pb.StartSequence(
        sequence_id="a", prompt_ids=[1, 2], generated_ids=[3], sampling=sampling, choice=4, max_tokens=5,
        stop_token_ids=[6, 7], ignore_eos=True, logprobs=0, priority=-8, cache_salt=b"salt",
        request_id="r", traceparent="00-a", tracestate="b", logit_bias={9: 0.1},
    )  # fmt: skip
    request = SequenceRequest(
        "a", (1, 2), SamplingParams(0.5, 0.9, 3, 0.1, 2**64 - 1, 1.1, 0.2, -0.3), max_tokens=5, generated_ids=(3,),
        choice=4, stop_token_ids=(6, 7), ignore_eos=True, logprobs=0, priority=-8,
        cache_salt=b"salt", request_id="r", traceparent="00-a", tracestate="b", logit_bias={9: 0.1},
    )  # fmt: skip
    assert sequence_request(start) == request
    assert start_message(request) == start


def test_absent_fields_are_the_documented_defaults() -> None:
    request = sequence_request(pb.StartSequence(sequence_id="a", prompt_ids=[1], max_tokens=1))
    assert request.sampling == SamplingParams()
    assert request.logprobs is None
    assert request.pooling is None


@pytest.mark.parametrize("pooling", Pooling)
def test_an_embedding_is_asked_for_by_its_pooling_alone(pooling: Pooling) -> None:
    start = start_message(SequenceRequest("a", (1,), max_tokens=1, pooling=pooling))
    assert start.pooling == inference.Pooling.Value(f"POOLING_{pooling.name}")
    read = sequence_request(start)
    assert (read.pooling, read.max_tokens) == (pooling, None)


def test_an_unknown_pooling_is_refused_by_name() -> None:
    with pytest.raises(FieldError, match="pooling: "):
        sequence_request(pb.StartSequence(sequence_id="a", prompt_ids=[1], pooling=77))  # type: ignore[arg-type]


def test_logprobs_travel_only_when_asked_for() -> None:
    update = SequenceUpdate("1:a", (SampledToken(5, 0.0), SampledToken(6, -0.5, (6, 7), (-0.5, -1.0))))
    assert not delta_message(update, "a", logprobs=False).logprobs
    first, second = delta_message(update, "a", logprobs=True).logprobs
    assert (first.logprob, list(first.top_ids)) == (0.0, [])
    assert (list(second.top_ids), list(second.top_logprobs)) == ([6, 7], [-0.5, -1.0])


def test_an_embedding_and_first_news_travel() -> None:
    update = SequenceUpdate("1:a", (), FinishReason.STOP, cached_tokens=0, queue_seconds=0.5, embedding=(1.0, -2.0))
    delta = delta_message(update, "a", logprobs=False)
    assert (list(delta.embedding), delta.queue_seconds) == ([1.0, -2.0], 0.5)
    assert delta.finish_reason == inference.FINISH_REASON_STOP


def test_status_carries_every_figure_of_the_engine() -> None:
    engine = EngineStatus(1, 2, 3, 4, 5.0, 6.0, 7, 8.0, 9, 10, 11, 12, 13, 14, 15, 16, 17)
    status = status_of(engine, fleet.WORKER_STATE_READY, "why", 0.5)
    figures = [
        status.running_sequences, status.waiting_sequences, status.waiting_prefill_tokens, status.free_blocks,
        status.prefill_tokens_per_second, status.decode_tokens_per_second, status.step,
    ]  # fmt: skip
    assert figures == [1, 2, 3, 4, 5.0, 6.0, 7]
    totals = status.counters
    assert [
        totals.step_seconds, totals.prompt_tokens, totals.generated_tokens, totals.prefix_queries_tokens,
        totals.prefix_hit_tokens, totals.preemptions, totals.admitted, totals.finished, totals.failed, totals.cancelled,
    ] == [8.0, 9, 10, 11, 12, 13, 14, 15, 16, 17]  # fmt: skip
    assert (status.reason, status.load_progress) == ("why", 0.5)


def test_options_of_a_load() -> None:
    wanted = fleet.WorkerOptions(
        dtype="bfloat16",
        context_length=1,
        kv_cache_tokens=2,
        max_sequences=3,
        step_tokens=4,
        threads=5,
        reproducible=True,
    )
    options = options_of(wanted, "cuda:1")
    assert (options.device, options.dtype) == ("cuda:1", "bfloat16")
    assert (options.context_length, options.kv_cache_tokens) == (1, 2)
    assert (options.max_sequences, options.step_tokens, options.threads) == (3, 4, 5)
    assert options.reproducible
    assert options_of(fleet.WorkerOptions(), "cpu") == EngineOptions(device="cpu", canary=True)
