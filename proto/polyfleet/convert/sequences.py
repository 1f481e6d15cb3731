"""Sequences between gateway and worker: what is asked of them, and their news."""

from collections.abc import Iterable, Mapping

from polyfleet.convert.codec import Codec
from polyfleet.v1 import inference_pb2
from polyfleet.v1.worker_pb2 import SampledLogprobs, SequenceDelta, StartSequence
from polyfleet.wire.answers import FinishReason, SampledToken, SequenceUpdate
from polyfleet.wire.requests import SequenceRequest

_START = Codec(SequenceRequest, StartSequence)
_REASONS: Mapping[FinishReason, "inference_pb2.FinishReason.ValueType"] = {
    FinishReason.STOP: inference_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: inference_pb2.FINISH_REASON_LENGTH,
}
UNTOLD = 0  # the id of a prompt's token: the gateway has them
_NUMBERS: Mapping[int, FinishReason | None] = {0: None, **{number: reason for reason, number in _REASONS.items()}}


def start_message(request: SequenceRequest) -> StartSequence:
    """To a worker."""
    return _START.message(request)


def sequence_request(start: StartSequence) -> SequenceRequest:
    """From a gateway; the engine checks it. Raises FieldError for an unknown pooling."""
    return _START.value(start, max_tokens=None) if start.pooling else _START.value(start)  # an embedding has none


def delta_message(update: SequenceUpdate, sequence_id: str, *, logprobs: bool) -> SequenceDelta:
    """An update as it travels, under the session's name of the sequence; `logprobs`: whether they were asked for.

    Those of a prompt are messages of their own.
    """
    tokens = update.tokens
    delta = SequenceDelta(sequence_id=sequence_id, token_ids=[token.token_id for token in tokens])
    if logprobs:
        delta.logprobs.extend(map(_logprobs, tokens))
    if update.finish_reason is not None:
        delta.finish_reason = _REASONS[update.finish_reason]
    if update.error:
        delta.error.code, delta.error.message = update.code, update.error
        delta.error.broken = update.broken
    if update.cached_tokens is not None:
        delta.cached_tokens = update.cached_tokens
    if update.queue_seconds is not None:
        delta.queue_seconds = update.queue_seconds
    if update.embedding:
        delta.embedding.extend(update.embedding)
    return delta


def scores_message(scores: Iterable[SampledToken], sequence_id: str) -> SequenceDelta:
    """Logprobs of a prompt's next tokens as they travel, before the first update."""
    return SequenceDelta(sequence_id=sequence_id, prompt_logprobs=map(_logprobs, scores))


def sequence_update(delta: SequenceDelta) -> SequenceUpdate:
    """A delta as it came. Whatever else a newer worker may call it, a sequence with a finish reason has ended."""
    ids = delta.token_ids
    told = delta.finish_reason or delta.queue_seconds or delta.cached_tokens or delta.logprobs or delta.prompt_logprobs
    if len(ids) == 1 and not told and not delta.HasField("error"):
        return SequenceUpdate(delta.sequence_id, (SampledToken(ids[0]),))  # nearly all are like this
    tokens = tuple(map(SampledToken, ids))
    if len(delta.logprobs) == len(tokens):
        given = zip(tokens, delta.logprobs, strict=True)
        tokens = tuple(_sampled(token.token_id, logprobs) for token, logprobs in given)
    error, code = "", 0
    if delta.HasField("error"):
        code, error = delta.error.code, delta.error.message or "The worker does not say why."
    return SequenceUpdate(
        *(delta.sequence_id, tokens, _NUMBERS.get(delta.finish_reason, FinishReason.STOP), error),
        *(delta.cached_tokens, delta.queue_seconds, () if tokens else tuple(delta.embedding), code),
        *(tuple(_sampled(UNTOLD, logprobs) for logprobs in delta.prompt_logprobs), delta.error.broken),
    )


def _logprobs(token: SampledToken) -> SampledLogprobs:
    return SampledLogprobs(logprob=token.logprob, top_ids=token.top_ids, top_logprobs=token.top_logprobs)


def _sampled(token_id: int, logprobs: SampledLogprobs) -> SampledToken:
    return SampledToken(token_id, logprobs.logprob, tuple(logprobs.top_ids), tuple(logprobs.top_logprobs))
