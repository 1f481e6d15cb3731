"""What the engine demands of a request before it is queued: the one place where its fields are checked."""

from collections.abc import Iterable
from dataclasses import replace

from polyfleet.wire.limits import CONTEXT_LENGTH_EXCEEDED, MAX_SEQUENCE_STOP_TOKEN_IDS, FieldError, check_range
from polyfleet.wire.requests import SequenceRequest


def check_request(request: SequenceRequest, vocabulary_size: int) -> None:
    """Raise FieldError for the first field out of range, whatever the context."""
    if not request.sequence_id:
        raise FieldError("sequence_id", "must not be empty")
    if not request.prompt_ids:
        raise FieldError("prompt_ids", "must hold at least one token")
    for field in ("prompt_ids", "generated_ids", "stop_token_ids", "logit_bias"):
        _check_ids(field, getattr(request, field), vocabulary_size)
    if (count := len(request.stop_token_ids)) > MAX_SEQUENCE_STOP_TOKEN_IDS:
        raise FieldError("stop_token_ids", f"must be at most {MAX_SEQUENCE_STOP_TOKEN_IDS}, not {count}")
    request.sampling.check()
    check_range("choice", request.choice, 0, 2**32 - 1)
    request.check()
    done = len(request.generated_ids)
    if done and request.pooling is not None:
        raise FieldError("generated_ids", "must be empty for an embedding")
    if request.max_tokens is not None and request.max_tokens <= done:
        raise FieldError("max_tokens", f"must be over the {done} tokens generated already, not {request.max_tokens}")


def in_segments(request: SequenceRequest, second: int) -> SequenceRequest:
    """The request with ids that tell which segment a token stands in: those of the second begin at `second`, if not 0.

    Raises FieldError where it begins outside of the prompt.
    """
    ids, start = request.prompt_ids, request.segment_start
    check_range("segment_start", start, 0, len(ids))
    return replace(request, prompt_ids=ids[:start] + tuple(second + each for each in ids[start:])) if start else request


def check_lengths(request: SequenceRequest, context_length: int) -> None:
    """Raise FieldError where the context has no room for one token more, or for `min_tokens`."""
    num_prompt, num_done = len(request.prompt_ids), len(request.generated_ids)
    longest, room = context_length - (request.pooling is None), context_length - num_prompt
    if not 0 < num_prompt + num_done <= longest:
        problem = f"must be 1 to {longest} tokens with those generated, not {num_prompt + num_done}"
        if not longest:
            problem = "can't be answered: the context has one token, which leaves no room to draw another"
        raise FieldError("prompt_ids", problem)
    if request.min_tokens > room:
        why = f"the context has {context_length} tokens, and the prompt has {num_prompt}"
        raise FieldError(
            "min_tokens", f"must be at most {room}, not {request.min_tokens}: {why}", CONTEXT_LENGTH_EXCEEDED
        )


def _check_ids(field: str, ids: Iterable[int], vocabulary_size: int) -> None:
    for wrong in (min(ids, default=0), max(ids, default=0)):
        if not 0 <= wrong < vocabulary_size:
            raise FieldError(field, f"must be below the vocabulary size {vocabulary_size}, not {wrong}")
