"""Ranking documents: what is computed for them, and what their scores are."""

import math
from collections.abc import Sequence

from polyfleet.gateway.prompts.prompts import Prompt
from polyfleet.gateway.request.encoding import encode_document
from polyfleet.gateway.request.models import ServedModel
from polyfleet.wire.answers import Ranked, Vector
from polyfleet.wire.requests import RerankRequest


async def ranking_prompts(served: ServedModel, request: RerankRequest, seconds: float) -> list[Prompt]:
    """One of each document with the query; for an embedder, which reads them apart, then one of the query.

    Raises as `encode_document`.
    """
    pairs, most = served.model.cross_encoder, request.max_tokens_per_doc
    query, apart = (request.query, []) if pairs else ("", [("query", request.query, 0)])
    texts = [(f"documents[{index}]", each, most) for index, each in enumerate(request.documents)]
    return [
        await encode_document(served, field, text, seconds, max_text=limit, query=query)
        for field, text, limit in (*texts, *apart)
    ]


def ranked(vectors: Sequence[Vector], model: ServedModel, top_n: int) -> tuple[Ranked, ...]:
    """The best documents, by what was computed for `ranking_prompts`; of equal ones the first."""
    if model.model.cross_encoder:
        scores = [vector[0] for vector in vectors]
    else:
        *documents, query = map(unit, vectors)
        scores = [sum(a * b for a, b in zip(query, each, strict=True)) for each in documents]
    order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
    return tuple(Ranked(index, scores[index]) for index in order[: top_n or None])


def unit(vector: Vector) -> Vector:
    """The vector at Euclidean length 1; a zero vector stays zero."""
    length = math.hypot(*vector)
    return tuple(value / length for value in vector) if length else vector
