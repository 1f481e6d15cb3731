"""The HTTP application by raw sockets and plain HTTP: malformed bodies, limits, disconnects, health, metrics."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx2 as httpx
import pytest
from tests.support.fake_generation import FakeGeneration
from tests.support.http_server import serve_http

from polyfleet.gateway.errors import DataLoss, ResourceExhausted
from polyfleet.gateway.http import create_metrics_app
from polyfleet.gateway.parts import GatewayParts

CHAT = "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "hi"}]}


@contextmanager
def connection(url: str) -> Iterator[socket.socket]:
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port or 0), timeout=30) as connected:
        yield connected


def raw_post(path: str, body: bytes, content_length: int | None = None) -> bytes:
    length = len(body) if content_length is None else content_length
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    return head.encode() + body


def read_all(connected: socket.socket) -> bytes:
    parts = []
    while part := connected.recv(65536):
        parts.append(part)
    return b"".join(parts)


def error_of(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert list(body) == ["error"]
    assert list(body["error"]) == ["message", "type", "param", "code"]
    assert response.headers["x-request-id"]
    error: dict[str, Any] = body["error"]
    return error


def num_malformed(state: GatewayParts, path: str) -> float:
    method = path.removeprefix("/v1/").replace("/", ".")
    labels = {"model": "", "method": method, "code": "INVALID_ARGUMENT"}
    return state.metrics.registry.get_sample_value("polyfleet_requests_total", labels) or 0


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xff", b'{"model": }', b'{"model": "m", "user": NaN}'])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/embeddings"])
def test_malformed_json(state: GatewayParts, http: httpx.Client, path: str, body: bytes) -> None:
    before = num_malformed(state, path)
    response = http.post(path, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    error = error_of(response)
    assert error["type"] == "invalid_request_error"
    assert error["param"] is None
    assert error["message"].startswith("The body is no valid JSON")
    assert num_malformed(state, path) == before + 1


def test_field_errors_name_the_field(http: httpx.Client) -> None:
    error = error_of(http.post(CHAT, json={**HI, "max_tokens": "many"}))
    assert error["param"] == "max_tokens"
    assert error["message"].startswith("max_tokens: expected `int | null`")


@pytest.mark.parametrize(
    ("body", "param", "problem"),
    [
        ({}, "messages", "is missing"),
        ({**HI, "temprature": 1}, "temprature", "is not a field of this request"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "is missing"),
        ({**HI, "stream_options": {"x": 1}}, "stream_options.x", "is not a field of this request"),
    ],
)
def test_missing_and_unknown_fields_are_named(http: httpx.Client, body: Any, param: str, problem: str) -> None:
    error = error_of(http.post(CHAT, json=body))
    assert error["param"] == param
    assert error["message"] == f"{param}: {problem}."


def test_body_over_the_limit(http: httpx.Client) -> None:
    response = http.post(CHAT, json={"messages": [{"role": "user", "content": "x" * 5000}]})
    assert response.status_code == 413
    assert "4096 bytes" in error_of(response)["message"]
    assert http.post(CHAT, json=HI).status_code == 200


def test_body_over_the_limit_is_refused_before_it_has_all_come(url: str) -> None:
    with connection(url) as connected:
        connected.sendall(raw_post(CHAT, b" " * 5000, content_length=10**9))
        assert read_all(connected).startswith(b"HTTP/1.1 413")


def test_body_that_claims_to_be_no_json(http: httpx.Client) -> None:
    response = http.post(CHAT, content=json.dumps(HI), headers={"content-type": "text/plain"})
    assert response.status_code == 415
    assert "application/json" in error_of(response)["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/v1/nothing", 404), ("GET", CHAT, 405), ("POST", "/v1/models", 405)]
)
def test_unknown_paths_and_methods(http: httpx.Client, method: str, path: str, status: int) -> None:
    response = http.request(method, path)
    assert response.status_code == status
    assert path in error_of(response)["message"]


def test_stream_on_the_wire(http: httpx.Client) -> None:
    response = http.post(CHAT, json={**HI, "stream": True})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-store"
    *events, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert [json.loads(event.removeprefix("data: "))["choices"][0]["delta"] for event in events] == [
        {"role": "assistant", "content": "Hello"},
        {"content": " there"},
        {"content": " friend 0"},
        {},
    ]


def test_error_after_the_first_byte_ends_without_done(http: httpx.Client, generation: FakeGeneration) -> None:
    generation.error, generation.error_after = DataLoss("The stream broke."), 1
    response = http.post("/v1/completions", json={"prompt": "a", "stream": True})
    assert response.status_code == 200
    first, last, rest = response.text.split("\n\n")
    assert json.loads(first.removeprefix("data: "))["choices"][0]["text"] == "Hello"
    assert json.loads(last.removeprefix("data: ")) == {
        "error": {"message": "The stream broke.", "type": "server_error", "param": None, "code": "data_loss"}
    }
    assert rest == ""


@pytest.mark.parametrize("error_after", [0, 1])
def test_fault_of_our_own_shows_no_trace(http: httpx.Client, generation: FakeGeneration, error_after: int) -> None:
    generation.error, generation.error_after = RuntimeError("secret detail"), error_after
    response = http.post(CHAT, json={**HI, "stream": True})
    assert response.status_code == (200 if error_after else 500)
    assert "secret detail" not in response.text
    assert '"code":"internal"' in response.text
    assert "[DONE]" not in response.text
    generation.reset()
    assert http.post(CHAT, json=HI).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_leaving_before_the_first_token_cancels(url: str, generation: FakeGeneration, path: str, stream: bool) -> None:
    generation.stall_at_once = True
    body = {"prompt": ["a", "b"]} if path == "/v1/completions" else HI
    with connection(url) as connected:
        connected.sendall(raw_post(path, json.dumps({**body, "stream": stream}).encode()))
        wait_for(lambda: bool(generation.requests))
    assert generation.cancelled.wait(10)


def test_leaving_an_embedding_cancels(url: str, generation: FakeGeneration) -> None:
    generation.stall_at_once = True
    with connection(url) as connected:
        connected.sendall(raw_post("/v1/embeddings", b'{"input": "a"}'))
        wait_for(lambda: bool(generation.requests))
    assert generation.cancelled.wait(10)


def test_leaving_mid_stream_cancels(url: str, generation: FakeGeneration) -> None:
    generation.endless = True
    with connection(url) as connected:
        connected.sendall(raw_post(CHAT, json.dumps({**HI, "stream": True}).encode()))
        received = b""
        while b"Hello" not in received:
            received += connected.recv(65536)
        assert not generation.cancelled.is_set()
    assert generation.cancelled.wait(10)


def test_leaving_before_the_body_is_whole_harms_nobody(
    url: str, http: httpx.Client, generation: FakeGeneration
) -> None:
    with connection(url) as connected:
        connected.sendall(raw_post(CHAT, b'{"messages"', content_length=500))
    assert http.post(CHAT, json=HI).status_code == 200
    assert len(generation.requests) == 1


def test_error_of_one_prompt_ends_all(http: httpx.Client, generation: FakeGeneration) -> None:
    generation.error = ResourceExhausted("Full.", retry_after=3)
    response = http.post("/v1/completions", json={"prompt": ["a", "b", "c"]})
    assert (response.status_code, response.headers["retry-after"]) == (429, "3")


def test_empty_model_name_is_answered_with_the_only_model(http: httpx.Client) -> None:
    assert http.post(CHAT, json=HI).json()["model"] == "org/fake"


def test_model_extensions(http: httpx.Client) -> None:
    assert http.get("/v1/models").json() == {
        "object": "list",
        "data": [
            {
                "id": "org/fake",
                "created": 1700000000,
                "context_length": 2048,
                "ready_workers": 1,
                "reason": "",
                "accelerators": ["cpu"],
                "sampling_defaults": {},
                "embeds_only": False,
                "cross_encoder": False,
                "ids_only": False,
                "object": "model",
                "owned_by": "polyfleet",
            }
        ],
    }


@pytest.mark.parametrize(
    ("path", "method", "code"),
    [
        ("/v1/models", "models.list", "OK"),
        ("/v1/models/org/fake", "models.retrieve", "OK"),
        ("/v1/models/other", "models.retrieve", "NOT_FOUND"),
    ],
)
def test_calls_that_the_core_does_not_see_are_counted(
    state: GatewayParts, http: httpx.Client, path: str, method: str, code: str
) -> None:
    labels = {"model": "", "method": method, "code": code}
    sample = partial(state.metrics.registry.get_sample_value, "polyfleet_requests_total", labels)
    before = sample() or 0
    http.get(path)
    assert sample() == before + 1


def test_metrics_are_not_behind_the_callers_door(http: httpx.Client) -> None:
    for path in ("/metrics", "/metrics/", "/v1/metrics", "/targets"):
        response = http.get(path, follow_redirects=True)
        assert response.status_code == 404
        assert error_of(response)["code"] == "not_found"


def test_metrics_port(state: GatewayParts, http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    http.post(CHAT, content=b"{", headers={"content-type": "application/json"})
    with serve_http(create_metrics_app(state.health, state.metrics)) as url:
        response = httpx.get(f"{url}/metrics")
        assert httpx.get(f"{url}/healthz").status_code == httpx.get(f"{url}/readyz").status_code == 200
        assert "/metrics for Prometheus" in httpx.get(url).text
        monkeypatch.setattr(state.health, "draining", True)
        assert httpx.get(f"{url}/readyz").status_code == 503
        assert httpx.get(f"{url}/v1/models").status_code == 404
    assert response.headers["content-type"].startswith("text/plain; version=")
    count = num_malformed(state, CHAT)
    line = f'polyfleet_requests_total{{code="INVALID_ARGUMENT",method="chat.completions",model=""}} {count}'
    assert line in response.text.splitlines()


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 60  # against hanging
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
