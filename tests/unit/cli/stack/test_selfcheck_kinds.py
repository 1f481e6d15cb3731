"""The self-check asks a model for what it gives: vectors of an embedder, a ranking of a cross encoder."""

from typing import Any

import pytest
from tests.support.scripted_inference import serve

from polyfleet.cli.stack.selfcheck import self_check
from polyfleet.client import Client
from polyfleet.v1 import inference_pb2 as pb


@pytest.mark.parametrize(
    ("facts", "shown"),
    [
        ({"embeds_only": True}, "a vector of 2 numbers"),
        ({"embeds_only": True, "cross_encoder": True}, "1 documents, the best with 0.500"),
    ],
)
def test_models_that_draw_no_tokens(facts: dict[str, bool], shown: str) -> None:
    def answer(request: Any, context: Any) -> Any:
        if isinstance(request, pb.GetModelRequest):
            return pb.Model(name="m", **facts)  # type: ignore[arg-type]
        if isinstance(request, pb.RerankRequest):
            return pb.RerankResponse(results=[pb.RankedDocument(index=0, relevance_score=0.5)])
        return pb.EmbedResponse(embeddings=[pb.Embedding(values=[0.5, 1.0])])

    said: list[str] = []
    with serve(answer) as script, Client(script.address) as client:
        self_check(client, "m", said.append)
    assert said == [shown]
