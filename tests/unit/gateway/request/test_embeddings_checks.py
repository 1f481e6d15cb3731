"""What is refused of embeddings, and of models that make nothing else."""

import pytest

from polyfleet.gateway.request.validation import check_dimensions, check_generates
from polyfleet.wire.answers import Model
from polyfleet.wire.limits import FieldError
from polyfleet.wire.requests import EmbedRequest


def test_dimensions() -> None:
    for dimensions, width in ((0, 8), (8, 8), (100, 0)):
        check_dimensions(EmbedRequest(dimensions=dimensions), Model("m"), width)
    with pytest.raises(FieldError, match="dimensions: must be at most 8, not 9: the embeddings of model m have 8"):
        check_dimensions(EmbedRequest(dimensions=9), Model("m"), 8)


def test_a_model_that_makes_embeddings_only() -> None:
    check_generates(Model("m"))
    with pytest.raises(FieldError, match="model: m makes embeddings and generates nothing: ask for these"):
        check_generates(Model("m", embeds_only=True))
    with pytest.raises(FieldError, match="model: m is a cross encoder and generates nothing: let it rank"):
        check_generates(Model("m", embeds_only=True, cross_encoder=True))
