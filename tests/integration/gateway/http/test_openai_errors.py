"""What the official `openai` client makes of errors, before and behind the first byte, keys and request ids."""

from pathlib import Path
from typing import Any

import openai
import pytest
from tests.support.fake_generation import FakeGeneration, gateway_state
from tests.support.http_server import serve_http

from polyfleet.gateway.errors import (
    Aborted,
    ApiError,
    DataLoss,
    DeadlineExceeded,
    FieldViolation,
    Internal,
    InvalidArgument,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
)
from polyfleet.gateway.http import create_app

MODEL = "org/fake"


HI: Any = [{"role": "user", "content": "hi"}]


BAD_TOP_P = InvalidArgument("x", violations=(FieldViolation("sampling.top_p", "is wrong"),))


@pytest.mark.parametrize(
    ("error", "kind", "status", "code"),
    [
        (BAD_TOP_P, openai.BadRequestError, 400, "invalid_argument"),
        (PermissionDenied("x"), openai.PermissionDeniedError, 403, "permission_denied"),
        (ResourceExhausted("x", retry_after=1.5), openai.RateLimitError, 429, "rate_limit_exceeded"),
        (Unavailable("x", retry_after=0.2), openai.InternalServerError, 503, "unavailable"),
        (DeadlineExceeded("x"), openai.InternalServerError, 504, "deadline_exceeded"),
        (Aborted("x"), openai.InternalServerError, 500, "aborted"),
        (DataLoss("x"), openai.InternalServerError, 500, "data_loss"),
        (Internal("x"), openai.InternalServerError, 500, "internal"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_before_the_first_byte_are_statuses(
    client: openai.OpenAI,
    generation: FakeGeneration,
    error: ApiError,
    kind: type[openai.APIStatusError],
    status: int,
    code: str,
    stream: bool,
) -> None:
    generation.error = error
    with pytest.raises(kind) as caught:
        client.chat.completions.create(model=MODEL, messages=HI, stream=stream)
    assert (caught.value.status_code, caught.value.code) == (status, code)
    assert caught.value.param == ("top_p" if status == 400 else None)
    assert caught.value.response.headers.get("retry-after") == {429: "2", 503: "1"}.get(status)


def test_unknown_model_names_those_that_are_served(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="There is no model x; served: org/fake") as caught:
        client.chat.completions.create(model="x", messages=HI)
    assert caught.value.code == "model_not_found"


def test_unsupported_field_is_named(client: openai.OpenAI, generation: FakeGeneration) -> None:
    with pytest.raises(openai.BadRequestError, match="verbosity: is not supported") as caught:
        client.chat.completions.create(model=MODEL, messages=HI, verbosity="low")
    assert caught.value.param == "verbosity"
    assert generation.requests == []


def test_error_after_the_first_byte_is_an_error_event(client: openai.OpenAI, generation: FakeGeneration) -> None:
    generation.error, generation.error_after = DataLoss("The worker died and the rest could not be resumed."), 2
    with client.chat.completions.create(model=MODEL, messages=HI, stream=True) as stream:
        assert [next(stream).choices[0].delta.content for _ in range(2)] == ["Hello", " there"]
        with pytest.raises(openai.APIError, match="could not be resumed") as caught:
            next(stream)
    assert caught.value.code == "data_loss"


def test_answer_cut_short_is_never_a_clean_end(client: openai.OpenAI, generation: FakeGeneration) -> None:
    generation.truncated = True
    with pytest.raises(openai.InternalServerError, match="ended too early"):
        client.completions.create(model=MODEL, prompt="a")
    stream = client.completions.create(model=MODEL, prompt="a", stream=True)
    with pytest.raises(openai.APIError, match="ended too early"):
        list(stream)


def test_keys(generation: FakeGeneration, tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    sha256_of_secret = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
    keys.write_text(f"keys:\n  - {{id: team-a, hash: {sha256_of_secret}, role: tenant}}\n")
    with serve_http(create_app(gateway_state(generation, keys_file=keys))) as url:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="secret") as client:
            client.chat.completions.create(model=MODEL, messages=HI)
            assert generation.calls[0].key_id == "team-a"
        with openai.OpenAI(base_url=f"{url}/v1", api_key="wrong") as client:
            for call in (client.models.list, lambda: client.completions.create(model=MODEL, prompt="a")):
                with pytest.raises(openai.AuthenticationError) as caught:
                    call()
                assert caught.value.code == "invalid_api_key"
                assert caught.value.response.headers["www-authenticate"] == "Bearer"
    assert len(generation.calls) == 1


def test_request_ids(client: openai.OpenAI, generation: FakeGeneration) -> None:
    named = client.with_options(default_headers={"x-request-id": "mine.1"})
    raw = named.chat.completions.with_raw_response.create(model=MODEL, messages=HI)
    assert raw.headers["x-request-id"] == "mine.1"
    assert raw.parse().id == "chatcmpl-mine.1"
    assert [getattr(wanted, "request_id", None) for wanted in generation.requests] == ["mine.1"]
    odd = client.with_options(default_headers={"x-request-id": "not an id"})
    made = odd.chat.completions.with_raw_response.create(model=MODEL, messages=HI).headers["x-request-id"]
    assert made.startswith("req-")
