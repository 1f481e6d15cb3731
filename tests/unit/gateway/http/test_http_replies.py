"""Replies: logprobs in both shapes, chunks, usage, embeddings, errors."""

import base64
import struct
from typing import Any

import msgspec
import pytest

from polyfleet.gateway.errors import (
    Aborted,
    ApiError,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    FieldViolation,
    Internal,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from polyfleet.gateway.http.errors import (
    BodyTooLarge,
    UnsupportedMediaType,
    error_response,
    plain_error,
    plain_error_body,
)
from polyfleet.gateway.http.openai.replies import chat_logprobs, completion_logprobs, embeddings_reply, usage_reply
from polyfleet.gateway.http.openai.shapes import ChatShape, CompletionShape, Shape
from polyfleet.wire.answers import Delta, Embeddings, FinishReason, TokenLogprobs, Usage
from polyfleet.wire.limits import CONTEXT_LENGTH_EXCEEDED, FieldError

TOP = (TokenLogprobs(1, "é", -0.25), TokenLogprobs(2, "\ufffd", -2.0, partial=b"\xe6\x97"))
LOGPROBS = (TokenLogprobs(1, "é", -0.25, TOP), TokenLogprobs(3, " b", -4.0, TOP))


def plain(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def test_chat_logprobs() -> None:
    top = [
        {"token": "é", "logprob": -0.25, "bytes": [0xC3, 0xA9]},
        {"token": "\ufffd", "logprob": -2.0, "bytes": [0xE6, 0x97]},
    ]
    assert plain(chat_logprobs(LOGPROBS)) == {
        "content": [
            {"token": "é", "logprob": -0.25, "bytes": [0xC3, 0xA9], "top_logprobs": top},
            {"token": " b", "logprob": -4.0, "bytes": [0x20, 0x62], "top_logprobs": top},
        ],
        "refusal": None,
    }


def test_completion_logprobs() -> None:
    assert plain(completion_logprobs(LOGPROBS, 10)) == {
        "tokens": ["é", " b"],
        "token_logprobs": [-0.25, -4.0],
        "top_logprobs": [{"é": -0.25, r"bytes:\xe6\x97": -2.0}, {"é": -0.25, r"bytes:\xe6\x97": -2.0, " b": -4.0}],
        "text_offset": [10, 11],
    }


def test_parts_of_different_characters_are_told_apart() -> None:
    """In lists by text, where all of them would be the same U+FFFD."""
    one, other = (TokenLogprobs(i, "\ufffd", -i, partial=part) for i, part in ((1, b"\xe2"), (2, b" \xf0\x9f")))
    reply = plain(completion_logprobs((TokenLogprobs(1, "\ufffd", -1, (one, other), b"\xe2"),), 0))
    assert reply["tokens"] == [r"bytes:\xe2"]
    assert reply["top_logprobs"] == [{r"bytes:\xe2": -1.0, r"bytes:\x20\xf0\x9f": -2.0}]


def test_usage() -> None:
    assert plain(usage_reply(Usage(10, 4, 7, 3))) == {
        "prompt_tokens": 10,
        "completion_tokens": 7,
        "total_tokens": 17,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }


def chunks(shape: Shape, *deltas: Delta) -> list[Any]:
    return [plain(choice) for delta in deltas for choice in shape.chunks(delta)]


def test_chat_chunks_name_the_role_once_for_each_choice() -> None:
    said = chunks(
        ChatShape(logprobs=False),
        Delta(0),
        Delta(0),
        Delta(0, "a", logprobs=LOGPROBS),
        Delta(1, "x", finish_reason=FinishReason.LENGTH),
        Delta(0, finish_reason=FinishReason.STOP),
        Delta(0, usage=Usage(1)),
    )
    assert said == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None},
        {"index": 0, "delta": {"content": "a"}, "logprobs": None, "finish_reason": None},
        {"index": 1, "delta": {"role": "assistant", "content": "x"}, "logprobs": None, "finish_reason": None},
        {"index": 1, "delta": {}, "logprobs": None, "finish_reason": "length"},
        {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"},
    ]


@pytest.mark.parametrize("shape", [ChatShape(logprobs=True), CompletionShape(logprobs=True)], ids=["chat", "text"])
def test_the_finish_reason_has_a_chunk_of_its_own(shape: Shape) -> None:
    """Also of a choice that ends before it says anything, and behind logprobs of text that stays held back."""
    said = chunks(shape, Delta(0, finish_reason=FinishReason.STOP), Delta(1, "x", logprobs=LOGPROBS))
    said += chunks(shape, Delta(1, logprobs=LOGPROBS, finish_reason=FinishReason.STOP))
    assert [(each["index"], each["finish_reason"]) for each in said] == [
        (0, None),
        (0, "stop"),
        (1, None),
        (1, None),
        (1, "stop"),
    ]
    assert all(each["finish_reason"] is None or each["logprobs"] is None for each in said)
    assert [each.get("delta", {}).get("content") or each.get("text") for each in said if each["finish_reason"]] in (
        [None, None],
        ["", ""],
    )


def test_held_back_text_does_not_hold_back_its_logprobs() -> None:
    said = chunks(ChatShape(logprobs=True), Delta(0, "a", logprobs=LOGPROBS[:1]), Delta(0, logprobs=LOGPROBS[1:]))
    assert [chunk["logprobs"]["content"][0]["token"] for chunk in said] == ["é", " b"]


def test_completion_chunks_count_offsets_on() -> None:
    said = chunks(
        CompletionShape(logprobs=True),
        Delta(0),
        Delta(0),
        Delta(0, "é", logprobs=LOGPROBS[:1]),
        Delta(1, "é", logprobs=LOGPROBS[:1]),
        Delta(0, " b", logprobs=LOGPROBS[1:], finish_reason=FinishReason.STOP),
    )
    assert [(c["index"], c["text"], (c["logprobs"] or {}).get("text_offset"), c["finish_reason"]) for c in said] == [
        (0, "", [], None),
        (0, "é", [0], None),
        (1, "é", [0], None),
        (0, " b", [1], None),
        (0, "", None, "stop"),
    ]


async def test_embeddings_in_both_encodings() -> None:
    result = Embeddings(((0.5, -1.5), (2.0, 0.0)), Usage(prompt_tokens=6))
    assert plain(await embeddings_reply(result, "m", "float")) == {
        "object": "list",
        "model": "m",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [0.5, -1.5]},
            {"object": "embedding", "index": 1, "embedding": [2.0, 0.0]},
        ],
        "usage": {"prompt_tokens": 6, "total_tokens": 6},
    }
    encoded = plain(await embeddings_reply(result, "m", "base64"))["data"][0]["embedding"]
    assert struct.unpack("<2f", base64.b64decode(encoded)) == (0.5, -1.5)


@pytest.mark.parametrize(
    ("kind", "status", "error_type", "code"),
    [
        (InvalidArgument, 400, "invalid_request_error", "invalid_argument"),
        (FailedPrecondition, 400, "invalid_request_error", "failed_precondition"),
        (BodyTooLarge, 413, "invalid_request_error", "invalid_argument"),
        (UnsupportedMediaType, 415, "invalid_request_error", "invalid_argument"),
        (Unauthenticated, 401, "authentication_error", "invalid_api_key"),
        (PermissionDenied, 403, "permission_error", "permission_denied"),
        (NotFound, 404, "invalid_request_error", "model_not_found"),
        (ResourceExhausted, 429, "rate_limit_error", "rate_limit_exceeded"),
        (Unavailable, 503, "server_error", "unavailable"),
        (DeadlineExceeded, 504, "server_error", "deadline_exceeded"),
        (Aborted, 500, "server_error", "aborted"),
        (DataLoss, 500, "server_error", "data_loss"),
        (Internal, 500, "server_error", "internal"),
    ],
)
def test_each_error_has_its_status(kind: type[ApiError], status: int, error_type: str, code: str) -> None:
    response = error_response(kind("Because."))
    assert response.status_code == status
    expected = {"message": "Because.", "type": error_type, "param": None, "code": code}
    assert msgspec.json.decode(response.body) == {"error": expected}
    assert "retry-after" not in response.headers
    assert response.headers.get("x-should-retry") == ("false" if kind is Aborted else None)
    assert ("www-authenticate" in response.headers) is (status == 401)


def test_a_reason_is_the_code() -> None:
    error = InvalidArgument.of(FieldError("text", "is long", CONTEXT_LENGTH_EXCEEDED))
    body = msgspec.json.decode(error_response(error, {"text": "prompt"}).body)["error"]
    assert (body["type"], body["param"], body["code"]) == ("invalid_request_error", "prompt", "context_length_exceeded")
    assert body["message"] == "prompt: is long (context_length_exceeded)."  # where LangChain looks for it


@pytest.mark.parametrize(
    ("status", "error_type"),
    [
        *((status, "invalid_request_error") for status in (400, 405, 413, 415, 431)),
        (404, "not_found_error"),
        (408, "timeout_error"),
        (429, "rate_limit_error"),
    ],
)
def test_the_type_of_what_is_no_request_does_not_contradict_its_status(status: int, error_type: str) -> None:
    """LiteLLM takes invalid_request_error for 400 before it looks at the status."""
    assert msgspec.json.decode(plain_error_body(status, "Because."))["error"]["type"] == error_type
    assert msgspec.json.decode(plain_error(status, "Because.", "c").body)["error"]["type"] == error_type


@pytest.mark.parametrize(("seconds", "header"), [(0.0, "1"), (0.2, "1"), (1.0, "1"), (2.1, "3")])
def test_retry_after_is_whole_seconds_rounded_up(seconds: float, header: str) -> None:
    assert error_response(Unavailable("Busy.", retry_after=seconds)).headers["retry-after"] == header


def test_error_names_the_field_as_the_endpoint_calls_it() -> None:
    error = InvalidArgument("x", violations=(FieldViolation("sampling.top_p", "must be over 0 up to 1, not 3"),))
    body = msgspec.json.decode(error_response(error).body)["error"]
    assert (body["param"], body["message"]) == ("top_p", "top_p: must be over 0 up to 1, not 3.")
