"""Thoughts, structures and calls of other families go on behind a worker that dies, for every choice."""

import json
from typing import Any

import pytest
from tests.integration.gateway.test_gateway_tools import ARGUMENTS, THINKING, TOOLS, USER, worker
from tests.support.fake_worker import FakeWorker
from tests.support.gateway_rig import GatewayRig
from tests.support.text_assets import CHATML

from polyfleet.client import AsyncClient

HARMONY = (
    "<|channel|>analysis<|message|>Is it cold?<|end|><|start|>assistant<|channel|>commentary to=functions.weather "
    f"<|constrain|>json<|message|>{ARGUMENTS}<|call|>"
)
THOUGHT = "<think>\nIs it cold?\n</think>\n\n"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


async def said(answer: str, template: str, options: dict[str, Any]) -> tuple[dict[int, tuple[str, str, str]], Any, Any]:
    """What each choice thought, said and called, and the two workers; the first dies midway."""
    first, second = (worker(name, answer, template, token_seconds=0.001) for name in ("w-1", "w-2"))
    first.drop_after(50)
    found: dict[int, list[str]] = {0: ["", "", ""], 1: ["", "", ""]}
    async with GatewayRig() as rig, AsyncClient(f"127.0.0.1:{rig.gateway.grpc.port}") as client:
        await rig.add(first)
        async with client.stream(messages=USER, n=2, logprobs=0, **options) as deltas:
            async for delta in deltas:
                if not second.address:
                    first.refusal = (14, "going")
                    await rig.add(second)
                whole = found[delta.choice]
                whole[0] += delta.reasoning
                whole[1] += delta.text
                whole[2] += "".join(call.name + call.arguments for call in delta.tool_calls)
                assert len(delta.logprobs) == len(delta.token_ids)
    return {choice: (each[0], each[1], each[2]) for choice, each in found.items()}, first, second


@pytest.mark.parametrize(
    ("answer", "template", "options", "expected"),
    [
        (
            THOUGHT + json.dumps({"city": "Bern"}),
            THINKING,
            {"json_schema": SCHEMA},
            ("Is it cold?", '{"city": "Bern"}', ""),
        ),
        (HARMONY, CHATML + "{# <|channel|> #}", {"tools": TOOLS}, ("Is it cold?", "", f"weather{ARGUMENTS}")),
    ],
    ids=["structure", "harmony"],
)
async def test_each_choice_is_whole(
    answer: str, template: str, options: dict[str, Any], expected: tuple[str, str, str]
) -> None:
    found, first, second = await said(answer, template, options)
    assert found == {0: expected, 1: expected}
    assert isinstance(second, FakeWorker)
    assert len(second.started) == 2
    for again in second.started:
        assert len(again.generated_ids) > 0
        assert again.grammar == first.started[0].grammar
        assert bool(again.grammar) == ("json_schema" in options)
