"""What the engine demands of a request before it is queued: the one place where its fields are checked."""

from collections.abc import Iterable

from polyfleet.engine.request import SequenceRequest
from polyfleet.wire.limits import MAX_PRIORITY, MAX_SEQUENCE_STOP_TOKEN_IDS, MAX_TOP_LOGPROBS, FieldError, check_range


def check_request(request: SequenceRequest, vocabulary_size: int) -> None:
    """Raise FieldError for the first field out of range; lengths against the context are the Batcher's to check."""
    if not request.sequence_id:
        raise FieldError("sequence_id", "must not be empty")
    if not request.prompt_ids:
        raise FieldError("prompt_ids", "must hold at least one token")
    for field in ("prompt_ids", "generated_ids", "stop_token_ids"):
        _check_ids(field, getattr(request, field), vocabulary_size)
    if (count := len(request.stop_token_ids)) > MAX_SEQUENCE_STOP_TOKEN_IDS:
        raise FieldError("stop_token_ids", f"must be at most {MAX_SEQUENCE_STOP_TOKEN_IDS}, not {count}")
    request.params.check()
    check_range("choice", request.choice, 0, 2**32 - 1)
    check_range("priority", request.priority, -MAX_PRIORITY, MAX_PRIORITY)
    if request.num_logprobs is not None:
        check_range("logprobs", request.num_logprobs, 0, MAX_TOP_LOGPROBS)
    if request.pooling is None:
        _check_max_tokens(request)
    elif request.generated_ids:
        raise FieldError("generated_ids", "must be empty for an embedding")


def _check_max_tokens(request: SequenceRequest) -> None:
    if request.max_tokens < 1:
        raise FieldError("max_tokens", f"must be 1 or more, not {request.max_tokens}")
    if request.max_tokens <= len(request.generated_ids):
        done = len(request.generated_ids)
        raise FieldError("max_tokens", f"must be over the {done} tokens generated already, not {request.max_tokens}")


def _check_ids(field: str, ids: Iterable[int], vocabulary_size: int) -> None:
    for wrong in (min(ids, default=0), max(ids, default=0)):
        if not 0 <= wrong < vocabulary_size:
            raise FieldError(field, f"must be below the vocabulary size {vocabulary_size}, not {wrong}")
