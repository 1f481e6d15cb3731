"""Between the public API's messages and the core's dataclasses. Pure; only how many there are is checked here."""

from collections.abc import Sequence

from polyfleet.gateway.api import (
    Delta,
    EmbedInput,
    EmbedRequest,
    EmbedResult,
    FinishReason,
    GenerateRequest,
    Message,
    Model,
    Pooling,
    TokenizeRequest,
    TokenizeResult,
    TokenLogprob,
    Usage,
)
from polyfleet.v1 import inference_pb2 as pb
from polyfleet.wire.limits import (
    MAX_EMBED_INPUTS,
    MAX_MESSAGES,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    FieldError,
    check_count,
)
from polyfleet.wire.sampling import DEFAULTABLE, NONE, SamplingParams

_POOLING = {
    pb.POOLING_UNSPECIFIED: Pooling.MEAN,
    pb.POOLING_MEAN: Pooling.MEAN,
    pb.POOLING_LAST: Pooling.LAST,
}
_REASONS = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
}


def generate_request(message: pb.GenerateRequest) -> GenerateRequest:
    """From the wire; absent fields get inference.proto's defaults, or are the model's own. Raises FieldError."""
    has = message.HasField
    check_count("stop", len(message.stop), MAX_STOP_STRINGS)
    check_count("stop_token_ids", len(message.stop_token_ids), MAX_STOP_TOKEN_IDS)
    return GenerateRequest(
        model=message.model,
        text=message.text if has("text") else None,
        messages=_messages(message.messages),
        token_ids=tuple(message.token_ids),
        sampling=_sampling(message.sampling),
        left_out=frozenset(name for name in DEFAULTABLE if not message.sampling.HasField(name)),  # type: ignore[arg-type]
        seed=message.sampling.seed if message.sampling.HasField("seed") else None,
        max_tokens=message.max_tokens if has("max_tokens") else None,
        stop=tuple(message.stop),
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        n=message.n if has("n") else 1,
        logprobs=message.logprobs if has("logprobs") else None,
        priority=message.priority,
        request_id=message.request_id,
    )


def _sampling(message: pb.SamplingParams) -> SamplingParams:
    has, default = message.HasField, SamplingParams()
    return SamplingParams(
        temperature=message.temperature if has("temperature") else default.temperature,
        top_p=message.top_p if has("top_p") else default.top_p,
        top_k=0 if message.top_k == NONE else message.top_k,
        min_p=message.min_p,
        repetition_penalty=message.repetition_penalty if has("repetition_penalty") else default.repetition_penalty,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
    )


def _messages(messages: Sequence[pb.ChatMessage]) -> tuple[Message, ...]:
    check_count("messages", len(messages), MAX_MESSAGES)
    return tuple(Message(each.role, each.content, each.name) for each in messages)


def generate_response(delta: Delta) -> pb.GenerateResponse:
    """To the wire. What is seldom there is set apart: one is made per token."""
    message = pb.GenerateResponse(choice=delta.choice, text=delta.text, token_ids=delta.token_ids)
    if delta.request_id:
        message.request_id = delta.request_id
    if delta.worker_id:
        message.worker_id = delta.worker_id
    if delta.logprobs:
        message.logprobs.extend(map(_logprobs, delta.logprobs))
    if delta.finish_reason is not None:
        message.finish_reason = _REASONS[delta.finish_reason]
    if delta.usage is not None:
        message.usage.CopyFrom(_usage(delta.usage))
    return message


def _logprobs(token: TokenLogprob) -> pb.TokenLogprobs:
    return pb.TokenLogprobs(
        token_id=token.token_id,
        text=token.text,
        logprob=token.logprob,
        top=map(_logprobs, token.top),
        partial=token.partial,
    )


def _usage(usage: Usage) -> pb.Usage:
    return pb.Usage(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
    )


def embed_request(message: pb.EmbedRequest) -> EmbedRequest:
    """From the wire. Raises FieldError for a pooling that does not exist."""
    if message.pooling not in _POOLING:
        raise FieldError("pooling", f"must be a value of polyfleet.v1.Pooling, not {message.pooling}")
    check_count("inputs", len(message.inputs), MAX_EMBED_INPUTS)
    inputs = tuple(
        EmbedInput(each.text if each.HasField("text") else None, tuple(each.token_ids)) for each in message.inputs
    )
    return EmbedRequest(message.model, inputs, _POOLING[message.pooling], message.normalize)


def embed_response(result: EmbedResult) -> pb.EmbedResponse:
    """To the wire."""
    return pb.EmbedResponse(
        embeddings=[pb.Embedding(values=vector) for vector in result.vectors], usage=_usage(result.usage)
    )


def tokenize_request(message: pb.TokenizeRequest) -> TokenizeRequest:
    """From the wire."""
    return TokenizeRequest(
        model=message.model,
        text=message.text if message.HasField("text") else None,
        messages=_messages(message.messages),
        add_special_tokens=message.add_special_tokens if message.HasField("add_special_tokens") else True,
    )


def tokenize_response(result: TokenizeResult) -> pb.TokenizeResponse:
    """To the wire."""
    return pb.TokenizeResponse(token_ids=result.token_ids, pieces=result.pieces)


def model_message(model: Model) -> pb.Model:
    """To the wire."""
    defaults = pb.SamplingParams(**model.sampling_defaults) if model.sampling_defaults else None  # type: ignore[arg-type]
    return pb.Model(
        name=model.name,
        context_length=model.context_length,
        vocabulary_size=model.vocabulary_size,
        ready_workers=model.ready_workers,
        reason=model.reason,
        accelerators=model.accelerators,
        created_unix_seconds=model.created_unix_seconds,
        sampling_defaults=defaults,
    )
