"""Bodies of `/v1/rerank`, as Cohere and Jina have them, and `/v1/score`, as vLLM has it, and their replies."""

from __future__ import annotations

import time
from typing import Literal

import msgspec

from polyfleet.gateway.http.bodies import NOTHING, Ignored, Inputs, Strict
from polyfleet.gateway.http.decoding import decode_inputs, decode_part
from polyfleet.gateway.http.openai.replies import EmbeddingsUsage
from polyfleet.wire.answers import Ranking, Usage
from polyfleet.wire.limits import MAX_DOCUMENTS, FieldError, check_count
from polyfleet.wire.requests import RerankRequest

Documents = msgspec.Raw  # list of texts, or of objects that have one: `_documents`


class DocumentBody(msgspec.Struct, frozen=True, kw_only=True):
    """A document; what else it has, an id say, is not looked at."""

    text: str


class RerankBody(Strict, frozen=True, kw_only=True):
    """Body of `POST /v1/rerank`."""

    query: str
    documents: Documents
    model: str | None = None
    top_n: int | None = None
    max_tokens_per_doc: int | None = None
    return_documents: bool | None = None
    user: Ignored = NOTHING
    priority: Ignored = NOTHING


class ScoreBody(Strict, frozen=True, kw_only=True):
    """Body of `POST /v1/score`."""

    text_1: str
    text_2: Inputs
    model: str | None = None
    user: Ignored = NOTHING


class DocumentReply(msgspec.Struct):
    """A document as it came."""

    text: str


class RankedReply(msgspec.Struct, omit_defaults=True):
    """A document by its place, and its score."""

    index: int
    relevance_score: float
    document: DocumentReply | None = None


class RerankReply(msgspec.Struct):
    """Body of `POST /v1/rerank`: documents, best first."""

    id: str
    model: str
    results: list[RankedReply]
    usage: EmbeddingsUsage


class ScoreReply(msgspec.Struct):
    """The score of a text."""

    index: int
    score: float
    object: Literal["score"] = "score"


class ScoresReply(msgspec.Struct):
    """Body of `POST /v1/score`: scores, in the order of `text_2`."""

    id: str
    created: int
    model: str
    data: list[ScoreReply]
    usage: EmbeddingsUsage
    object: Literal["list"] = "list"


def rerank_request(body: RerankBody, request_id: str) -> RerankRequest:
    """The request. Raises FieldError."""
    for field in ("top_n", "max_tokens_per_doc"):
        value = getattr(body, field)
        if value is not None and value < 1:
            raise FieldError(field, f"must be 1 or more, not {value}")
    return RerankRequest(
        model=body.model or "",
        query=body.query,
        documents=_documents(body.documents),
        top_n=body.top_n or 0,
        max_tokens_per_doc=body.max_tokens_per_doc or 0,
        request_id=request_id,
    )


def score_request(body: ScoreBody, request_id: str) -> RerankRequest:
    """The request of all scores. Raises FieldError."""
    texts = decode_inputs(body.text_2, "text_2", MAX_DOCUMENTS)
    documents = tuple(each for each in texts if isinstance(each, str))
    if len(documents) < len(texts):
        raise FieldError("text_2", "must be a string or a list of strings: token ids are not scored")
    return RerankRequest(body.model or "", body.text_1, documents, request_id=request_id)


def rerank_reply(ranking: Ranking, wanted: RerankRequest, model: str, *, documents: bool) -> RerankReply:
    """The reply, with the `documents` where they are wanted back."""

    def shown(index: int) -> DocumentReply | None:
        return DocumentReply(wanted.documents[index]) if documents else None

    results = [RankedReply(each.index, each.relevance_score, shown(each.index)) for each in ranking.results]
    return RerankReply(wanted.request_id, model, results, _usage(ranking.usage))


def scores_reply(ranking: Ranking, wanted: RerankRequest, model: str) -> ScoresReply:
    """The reply."""
    results = sorted(ranking.results, key=lambda each: each.index)
    scores = [ScoreReply(each.index, each.relevance_score) for each in results]
    return ScoresReply(wanted.request_id, int(time.time()), model, scores, _usage(ranking.usage))


def _usage(usage: Usage) -> EmbeddingsUsage:
    return EmbeddingsUsage(usage.prompt_tokens, usage.prompt_tokens)


def _documents(value: Documents) -> tuple[str, ...]:
    """Texts, counted before an object is made of each. Raises FieldError."""
    if bytes(value).count(b",") >= MAX_DOCUMENTS:  # else there are no more; some may stand in texts
        check_count("documents", len(decode_part(value, list[msgspec.Raw], "documents")), MAX_DOCUMENTS)
    found = decode_part(value, list[str | DocumentBody], "documents")
    return tuple(each if isinstance(each, str) else each.text for each in found)
