"""docs/api.md names every field, status and error class that the code has."""

import re
from pathlib import Path

import pytest

from polyfleet import client as pf
from polyfleet.gateway.errors import Code
from polyfleet.gateway.http.bodies import (
    UNSUPPORTED,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    EmbeddingsBody,
    MessageBody,
    Strict,
    TokenizeBody,
)
from polyfleet.gateway.http.messages.body import MessagesBody
from polyfleet.gateway.http.ranking import RerankBody, ScoreBody
from polyfleet.gateway.http.responses.body import ResponsesBody
from polyfleet.wire.requests import GenerateOptions

TEXT = (Path(__file__).parents[4] / "docs" / "api.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"[A-Za-z_]\w*", " ".join(re.findall(r"`([^`]+)`", TEXT))))


BODIES = [ChatBody, CompletionBody, EmbeddingsBody, MessageBody, MessagesBody, ResponsesBody, TokenizeBody]


@pytest.mark.parametrize("body", [*BODIES, DetokenizeBody, RerankBody, ScoreBody])
def test_every_field_of_every_body_is_documented(body: type[Strict]) -> None:
    assert set(body.__struct_fields__) - NAMED == set()


def test_every_unsupported_field_is_documented() -> None:
    assert set(UNSUPPORTED) - NAMED == set()


def test_every_option_of_the_client_is_documented() -> None:
    assert set(GenerateOptions.__annotations__) - NAMED == set()


def test_every_status_is_documented() -> None:
    assert {code.name for code in Code} - {"OK"} - NAMED == set()


def test_every_error_of_the_client_is_documented() -> None:
    errors = {name for name in pf.__all__ if name.endswith("Error")}
    assert "NotFoundError" in errors
    assert errors - NAMED == set()
