"""Ranking over HTTP, as Cohere's, Jina's and vLLM's clients ask for it."""

from typing import Any

import httpx2 as httpx
import pytest
from tests.support.fake_generation import FakeGeneration

from polyfleet.gateway.errors import InvalidArgument
from polyfleet.wire.limits import FieldError


def error_of(response: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = response.json()["error"]
    return error


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_rerank_as_cohere_and_jina_have_it(http: httpx.Client, path: str) -> None:
    body: dict[str, Any] = {"query": "q", "documents": ["long one", {"text": "a", "id": 3}, "abc"], "top_n": 2}
    reply = http.post(path, json=body | {"return_documents": True, "model": "org/fake"})
    assert reply.json() == {
        "id": reply.headers["x-request-id"],
        "model": "org/fake",
        "results": [
            {"index": 1, "relevance_score": 0.5, "document": {"text": "a"}},
            {"index": 2, "relevance_score": 0.25, "document": {"text": "abc"}},
        ],
        "usage": {"prompt_tokens": 12, "total_tokens": 12},
    }
    assert "document" not in http.post(path, json=body).json()["results"][0]


@pytest.mark.parametrize(
    ("change", "param", "problem"),
    [
        ({"documents": "a"}, "documents", "expected `array`, got `str`"),
        ({"documents": ["a", 3]}, "documents[1]", "expected"),
        ({"documents": [{"id": 1}]}, "documents[0].text", "is missing"),
        ({"documents": ["a"] * 1001}, "documents", "must be at most 1000, not 1001"),
        ({"top_n": 0}, "top_n", "must be 1 or more, not 0"),
        ({"rank_fields": ["title"]}, "rank_fields", "is not a field of this request"),
    ],
)
def test_rerank_that_is_refused(http: httpx.Client, change: dict[str, Any], param: str, problem: str) -> None:
    reply = http.post("/v1/rerank", json={"query": "q", "documents": ["a"]} | change)
    assert (reply.status_code, error_of(reply)["param"]) == (400, param)
    assert problem in error_of(reply)["message"]


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
def test_scores_as_vllm_has_them(http: httpx.Client, path: str, generation: FakeGeneration) -> None:
    reply = http.post(path, json={"text_1": "q", "text_2": ["long one", "a"]}).json()
    assert reply["data"] == [
        {"index": 0, "score": 1 / 9, "object": "score"},
        {"index": 1, "score": 0.5, "object": "score"},
    ]
    assert len(http.post(path, json={"text_1": "q", "text_2": "a"}).json()["data"]) == 1
    assert "token ids are not scored" in error_of(http.post(path, json={"text_1": "q", "text_2": [1, 2]}))["message"]
    generation.error = InvalidArgument.of(FieldError("documents[0]", "is bad"))
    assert error_of(http.post(path, json={"text_1": "q", "text_2": "a"}))["param"] == "text_2[0]"
