"""Thoughts, structures and calls of other families go on behind a worker that dies, for every choice."""

import json
from typing import Any

import httpx2 as httpx
import pytest
from tests.integration.gateway.test_gateway_tools import ARGUMENTS, CALL, THINKING, TOOLS, USER, worker
from tests.support.fake_worker import FakeWorker
from tests.support.gateway_rig import GatewayRig
from tests.support.text_assets import CHATML
from tests.unit.gateway.http.test_http_event_order import message_of, response_of

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


FUNCTION: dict[str, Any] = TOOLS[0]["function"]
HTTP: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER, "tools": TOOLS},
    "/v1/responses": {"input": USER, "tools": [{"type": "function", **FUNCTION}]},
    "/v1/messages": {
        "messages": USER,
        "max_tokens": 400,
        "tools": [{"name": FUNCTION["name"], "input_schema": FUNCTION["parameters"]}],
    },
}
WANTED = [("reasoning", "Is it cold?"), ("text", "Let me see."), ("weather", ARGUMENTS), ("weather", ARGUMENTS)]


def blocks(path: str, events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """What was thought, said and called, in its order, of a stream's events."""
    found = dict[str, tuple[str, str]]()
    if path == "/v1/responses":
        for item in response_of(events)[0]:
            text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
            kind = {"message": "text", "function_call": item.get("name")}.get(item["type"], item["type"])
            found[item["id"]] = (str(kind), text)
    elif path == "/v1/messages":
        for index, block in enumerate(message_of(events)["content"]):
            kind = {"thinking": "reasoning", "tool_use": block.get("name")}.get(block["type"], block["type"])
            found[str(index)] = (str(kind), block["input" if block["type"] == "tool_use" else block["type"]])
    else:
        for delta in (event["choices"][0]["delta"] for event in events):
            pieces = [
                ("reasoning", "reasoning", delta.get("reasoning_content")),
                ("text", "text", delta.get("content")),
            ]
            for call in delta.get("tool_calls", ()):
                pieces.append((str(call["index"]), call["function"].get("name"), call["function"].get("arguments")))
            for key, kind, piece in pieces:
                if kind or piece:
                    known = found.get(key, (kind, ""))
                    found[key] = (known[0], known[1] + (piece or ""))
        found = {key: each for key, each in found.items() if each[1]}
    return list(found.values())


@pytest.mark.parametrize("path", HTTP)
async def test_streams_over_http_are_whole(path: str) -> None:
    answer = f"{THOUGHT}Let me see. {CALL}\n{CALL}"
    first, second = (worker(name, answer, THINKING, token_seconds=0.001) for name in ("w-1", "w-2"))
    first.drop_after(60)
    events = list[dict[str, Any]]()
    async with GatewayRig() as rig, httpx.AsyncClient(base_url=rig.http, trust_env=False, timeout=60) as http:
        await rig.add(first)
        async with http.stream("POST", path, json={**HTTP[path], "model": "", "stream": True}) as reply:
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    events.append(json.loads(line.removeprefix("data: ")))
                if events and not second.address:
                    first.refusal = (14, "going")
                    await rig.add(second)
    assert blocks(path, events) == WANTED
    assert [len(each.generated_ids) > 0 for each in second.started] == [True]
