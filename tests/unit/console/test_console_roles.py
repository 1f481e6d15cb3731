"""What pages say of prompts that are computed apart: whose part that is, and where it was done, in both languages."""

from typing import Any, cast

import pytest

from polyfleet.console.access.sessions import Sessions
from polyfleet.console.config import ConsoleConfig
from polyfleet.console.fleet.view import FleetView
from polyfleet.console.pages.look import Look
from polyfleet.v1 import fleet_pb2, operations_pb2

PREFILL, DECODE = fleet_pb2.WORKER_ROLE_PREFILL, fleet_pb2.WORKER_ROLE_DECODE
SAYS: dict[tuple[str, int], str] = {
    ("en", PREFILL): "computes prompts for others",
    ("en", DECODE): "others may compute its prompts",
    ("en", fleet_pb2.WORKER_ROLE_UNSPECIFIED): "prompts and answers",
    ("zh", PREFILL): "为其他工作进程计算提示",
    ("zh", DECODE): "提示可由其他工作进程计算",
    ("zh", fleet_pb2.WORKER_ROLE_UNSPECIFIED): "提示与回答",
}


@pytest.fixture(scope="module")
def look() -> Look:
    return Look(cast("Sessions", None), cast("FleetView", None), ConsoleConfig())


@pytest.mark.parametrize(("language", "role"), SAYS)
def test_a_role_is_said_in_the_reader_s_language(look: Look, language: str, role: int) -> None:
    assert look.part("role.html", language, "", role=role).strip() == SAYS[language, role]


@pytest.mark.parametrize(
    ("prefill", "cell"),
    [
        ("at fast-0", '<a href="/c/workers/fast-0">fast-0</a>'),
        ("together", "together"),
        ("", "–"),
        ("<b>", "&lt;b&gt;"),
    ],
)
def test_requests_say_who_computed_their_prompt(look: Look, prefill: str, cell: str) -> None:
    record = operations_pb2.RequestRecord(request_id="one", prefill=prefill)
    facts: dict[str, Any] = {"session": None, "csrf": "", "keyed": False, "languages": {}}
    facts |= {"theme": "auto", "themes": ()}
    facts |= {"path": "/requests", "tenant": "", "model": "", "problem": "", "running": [record], "ended": []}
    facts |= {"record": record, "placements": []}
    assert f"<td>{cell}</td></tr>" in look.part("requests.html", "en", "/c", **facts)
    assert f"<dd>{cell}</dd>" in look.part("request.html", "zh", "/c", **facts)
