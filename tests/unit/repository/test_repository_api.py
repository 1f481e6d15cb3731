"""docs/api.md names everything that a caller may send or is told: fields, calls and paths."""

import re
from pathlib import Path
from typing import Any

import pytest

from polyfleet.gateway.http import app, bodies
from polyfleet.gateway.http import tokens as token_bodies
from polyfleet.gateway.http.messages import body as messages_body
from polyfleet.gateway.http.responses import body as responses_body
from polyfleet.v1 import inference_pb2 as pb

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
CODE = set(re.findall(r"`([^`]+)`", TEXT))
NAMES = {name for each in CODE for name in re.findall(r"\w+", each)}
BODIES = [
    kind
    for module in (bodies, token_bodies, responses_body, messages_body)
    for kind in vars(module).values()
    if getattr(kind, "__module__", "") == module.__name__ and hasattr(kind, "__struct_encode_fields__")
]


@pytest.mark.parametrize("message", pb.DESCRIPTOR.message_types_by_name.values(), ids=lambda each: str(each.name))
def test_every_field_of_the_protos_is_named(message: Any) -> None:
    assert {field.name for field in message.fields} <= NAMES


@pytest.mark.parametrize("body", BODIES, ids=lambda each: str(each.__name__))
def test_every_field_of_bodies_is_named(body: Any) -> None:
    assert set(body.__struct_encode_fields__) <= NAMES


def test_every_call_and_path_is_named() -> None:
    calls = [method.name for service in pb.DESCRIPTOR.services_by_name.values() for method in service.methods]
    assert set(calls) <= NAMES
    paths = re.findall(r'Route\("([^"{]+)', Path(app.__file__).read_text(encoding="utf-8"))
    assert len(paths) > 9
    assert [path for path in paths if not any(path.rstrip("/") in each for each in CODE)] == []
