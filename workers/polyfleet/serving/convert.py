"""Between the wire's messages and the engine's data. Pure."""

from dataclasses import fields

from polyfleet.engine.request import (
    EngineOptions,
    EngineStatus,
    FinishReason,
    PoolingKind,
    SampledToken,
    SequenceRequest,
    SequenceUpdate,
)
from polyfleet.serving.messages import Loaded
from polyfleet.v1 import fleet_pb2 as fleet
from polyfleet.v1 import inference_pb2 as inference
from polyfleet.v1 import worker_pb2 as pb
from polyfleet.wire.limits import FieldError
from polyfleet.wire.options import options_in
from polyfleet.wire.sampling import SamplingParams

_POOLING = {inference.POOLING_MEAN: PoolingKind.MEAN, inference.POOLING_LAST: PoolingKind.LAST}
_FINISH = {FinishReason.STOP: inference.FINISH_REASON_STOP, FinishReason.LENGTH: inference.FINISH_REASON_LENGTH}
_SAMPLING_FIELDS = tuple(each.name for each in fields(SamplingParams))
_COUNTERS = (
    "prompt_tokens",
    "generated_tokens",
    "prefix_queries_tokens",
    "prefix_hit_tokens",
    "preemptions",
    "admitted",
    "finished",
    "failed",
    "cancelled",
    "step_seconds",
)


def request_of(start: pb.StartSequence, engine_id: str) -> SequenceRequest:
    """The engine's request, under the name `engine_id`; the engine checks it. FieldError for an unknown pooling."""
    return SequenceRequest(
        sequence_id=engine_id,
        prompt_ids=tuple(start.prompt_ids),
        params=sampling_of(start.sampling),
        max_tokens=start.max_tokens,
        generated_ids=tuple(start.generated_ids),
        choice=start.choice,
        stop_token_ids=frozenset(start.stop_token_ids),
        ignore_eos=start.ignore_eos,
        num_logprobs=start.logprobs if start.HasField("logprobs") else None,
        priority=start.priority,
        pooling=pooling_of(start.pooling),
        cache_salt=start.cache_salt,
    )


def sampling_of(message: inference.SamplingParams) -> SamplingParams:
    """Sampling parameters, not checked; defaults where a field is absent."""
    given = {name: getattr(message, name) for name in _SAMPLING_FIELDS if message.HasField(name)}  # type: ignore[arg-type]
    return SamplingParams(**given)


def pooling_of(value: "inference.Pooling.ValueType") -> PoolingKind | None:
    """None when tokens are wanted. Raises FieldError for a number that the enum does not have."""
    if value == inference.POOLING_UNSPECIFIED:
        return None
    if value not in _POOLING:
        raise FieldError("pooling", f"must be a value of polyfleet.v1.Pooling, not {value}")
    return _POOLING[value]


def delta_of(update: SequenceUpdate, sequence_id: str, *, logprobs: bool) -> pb.SequenceDelta:
    """An update as it travels, under the session's name of the sequence; `logprobs`: whether they were asked for."""
    delta = pb.SequenceDelta(sequence_id=sequence_id, token_ids=[token.token_id for token in update.tokens])
    if logprobs:
        delta.logprobs.extend(map(_logprobs_of, update.tokens))
    if update.finish_reason is not None:
        delta.finish_reason = _FINISH[update.finish_reason]
    if update.cached_tokens is not None:
        delta.cached_tokens = update.cached_tokens
    if update.queue_seconds is not None:
        delta.queue_seconds = update.queue_seconds
    if update.embedding:
        delta.embedding.extend(update.embedding)
    return delta


def _logprobs_of(token: SampledToken) -> pb.SampledLogprobs:
    return pb.SampledLogprobs(logprob=token.logprob, top_ids=token.top_ids, top_logprobs=token.top_logprobs)


def status_of(
    engine: EngineStatus, state: "fleet.WorkerState.ValueType", reason: str, load_progress: float
) -> fleet.WorkerStatus:
    """What a worker reports now."""
    return fleet.WorkerStatus(
        state=state,
        reason=reason,
        load_progress=load_progress,
        running_sequences=engine.running_sequences,
        waiting_sequences=engine.waiting_sequences,
        waiting_prefill_tokens=engine.waiting_prefill_tokens,
        free_blocks=engine.free_blocks,
        prefill_tokens_per_second=engine.prefill_tokens_per_second,
        decode_tokens_per_second=engine.decode_tokens_per_second,
        step=engine.steps,
        counters=fleet.EngineCounters(**{name: getattr(engine, name) for name in _COUNTERS}),
    )


def model_info_of(loaded: Loaded, served_name: str) -> fleet.ModelInfo:
    """What a worker announces about its model."""
    facts = loaded.facts
    return fleet.ModelInfo(
        name=served_name,
        architecture=facts.architecture,
        tokenizer_hash=loaded.tokenizer_hash,
        context_length=facts.context_length,
        vocabulary_size=facts.vocabulary_size,
        hidden_size=facts.hidden_size,
        block_size=facts.block_size,
        num_blocks=facts.num_blocks,
        max_sequences=facts.max_sequences,
        dtype=facts.dtype,
        end_token_ids=facts.end_token_ids,
        fingerprint=facts.fingerprint,
    )


def options_of(message: fleet.WorkerOptions, device: str) -> EngineOptions:
    """Engine options of a Load. Raises FieldError for a value out of range."""
    return EngineOptions(device=device, canary=True, **options_in(message))  # type: ignore[arg-type]
