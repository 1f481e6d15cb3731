"""Tools through a whole gateway: real clients against workers that answer as told, one of which is killed midway."""

import json
from typing import Any

import openai
import pytest
from tests.support.fake_worker import FakeWorker
from tests.support.gateway_rig import MODEL, VOCABULARY, GatewayRig
from tests.support.text_assets import CHATML, assets_document, byte_level_tokenizer

from polyfleet.client import AsyncClient, FinishReason, InvalidArgumentError, ToolCall

TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "parameters": {"properties": {"city": {"type": "string"}}}}}
]
ARGUMENTS = '{"city": "Zürich", "days": [1, 2]}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
THINKING = CHATML + "{# </think> #}"
USER: Any = [{"role": "user", "content": "How is the weather?"}]


def worker(worker_id: str, answer: str, template: str = CHATML, **options: Any) -> FakeWorker:
    """Answers so, to whatever."""
    ids = [*byte_level_tokenizer().encode(answer).ids, 2]
    return FakeWorker(
        worker_id,
        MODEL,
        assets=assets_document(chat_template=template),
        vocabulary_size=VOCABULARY,
        end_token_ids=[2],
        tokens=lambda _prompt, index, _choice: ids[index],
        **options,
    )


@pytest.mark.parametrize("killed", [False, True])
async def test_calls_reach_the_openai_client_whole_and_streamed(killed: bool) -> None:
    first, second = (worker(name, f"Let me see. {CALL}\n{CALL}", token_seconds=0.001) for name in ("w-1", "w-2"))
    async with GatewayRig() as rig, openai.AsyncOpenAI(base_url=f"{rig.http}/v1", api_key="x", max_retries=0) as client:
        await rig.add(first)
        if killed:
            first.drop_after(40)
        stream = await client.chat.completions.create(model=MODEL, messages=USER, tools=TOOLS, stream=True)
        calls: dict[int, list[str]] = {}
        text, reason, pieces = "", None, 0
        async for chunk in stream:
            if killed and not second.address:
                first.refusal = (14, "going")
                await rig.add(second)
            (choice,) = chunk.choices
            text, reason = text + (choice.delta.content or ""), choice.finish_reason or reason
            for call in choice.delta.tool_calls or ():
                assert call.function is not None
                if call.id:
                    assert (call.index not in calls, call.type, call.function.name) == (True, "function", "weather")
                    calls[call.index] = [call.id, ""]
                calls[call.index][1] += call.function.arguments or ""
                pieces += 1
        assert (text, reason, len(second.started) > 0) == ("Let me see.", "tool_calls", killed)
        assert [arguments for _, arguments in calls.values()] == [ARGUMENTS] * 2
        assert len({call_id for call_id, _ in calls.values()}) == 2
        assert pieces > 10
        if not killed:
            whole = await client.chat.completions.create(model=MODEL, messages=USER, tools=TOOLS, n=2)
            for each in whole.choices:
                assert (each.finish_reason, each.message.content) == ("tool_calls", "Let me see.")
                assert [call.function.arguments for call in each.message.tool_calls or ()] == [ARGUMENTS] * 2  # type: ignore[union-attr]
            history = [*USER, whole.choices[0].message, {"role": "tool", "tool_call_id": "c", "content": "3 degrees"}]
            again = await client.chat.completions.create(
                model=MODEL, messages=history, tools=TOOLS, parallel_tool_calls=False
            )
            assert len(again.choices[0].message.tool_calls or ()) == 1
            none = await client.chat.completions.create(model=MODEL, messages=USER, tools=TOOLS, tool_choice="none")
            assert (none.choices[0].finish_reason, none.choices[0].message.tool_calls) == ("stop", None)
            assert none.choices[0].message.content == f"Let me see. {CALL}\n{CALL}"


async def test_calls_and_thoughts_reach_our_own_client() -> None:
    answer = f"<think>\nIs it cold?\n</think>\n\n{CALL}"
    async with GatewayRig() as rig:
        await rig.add(worker("w-1", answer, THINKING))
        async with AsyncClient(f"127.0.0.1:{rig.gateway.grpc.port}") as client:
            said = await client.chat(USER, tools=TOOLS, template_arguments={"enable_thinking": True})
            assert (said.text, said.reasoning, said.finish_reason) == ("", "Is it cold?", FinishReason.TOOL_CALLS)
            (call,) = said.tool_calls
            assert (call.name, call.arguments) == ("weather", ARGUMENTS)
            turns: list[Any] = [*USER, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "3"}]
            turns.append(
                {
                    "role": "assistant",
                    "tool_calls": [TOOLS[0] | {"id": "c", "function": {"name": "f", "arguments": {}}}],
                }
            )
            assert (await client.chat(turns)).text == CALL
            raw = await client.generate("text", max_tokens=200)
            assert (raw.text, raw.reasoning) == (answer, "")
    assert ToolCall("c", "f", "{}") != call


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (
            '<tool_call>{"name": "rain", "arguments": {}}</tool_call>',
            '<tool_call>{"name": "rain", "arguments": {}}</tool_call>',
        ),
        (
            '<tool_call>{"name": "weather", "arguments": {"a": }}',
            '<tool_call>{"name": "weather", "arguments": {"a": }}',
        ),
    ],
)
async def test_what_is_no_call_stays_text(answer: str, text: str) -> None:
    async with GatewayRig() as rig, openai.AsyncOpenAI(base_url=f"{rig.http}/v1", api_key="x") as client:
        await rig.add(worker("w-1", answer))
        said = (await client.chat.completions.create(model=MODEL, messages=USER, tools=TOOLS)).choices[0]
        assert (said.message.content, said.message.tool_calls, said.finish_reason) == (text, None, "stop")
        named: Any = {"type": "function", "function": {"name": "rain"}}
        with pytest.raises(openai.BadRequestError, match="tool_choice") as caught:
            await client.chat.completions.create(model=MODEL, messages=USER, tools=TOOLS, tool_choice=named)
        assert caught.value.param == "tool_choice"


async def test_the_operator_may_choose_how_calls_are_read() -> None:
    listed = json.dumps([{"name": "weather", "arguments": {}}])
    for parser, text in (("mistral", ""), ("none", f"[TOOL_CALLS]{listed}")):
        async with GatewayRig(config={"tool_parser": parser}) as rig:
            await rig.add(worker("w-1", f"[TOOL_CALLS]{listed}"))
            async with AsyncClient(f"127.0.0.1:{rig.gateway.grpc.port}") as client:
                said = await client.chat(USER, tools=TOOLS)
                assert (said.text, len(said.tool_calls)) == (text, parser == "mistral")


async def test_structures_become_grammars_and_bad_ones_are_refused() -> None:
    fake = worker("w-1", '{"name": "weather", "arguments": {"city": "Bern"}}')
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    async with GatewayRig() as rig, openai.AsyncOpenAI(base_url=f"{rig.http}/v1", api_key="x", max_retries=0) as client:
        await rig.add(fake)
        create: Any = client.chat.completions.create
        said = (await create(model=MODEL, messages=USER, tools=TOOLS, tool_choice="required")).choices[0]
        assert (said.finish_reason, said.message.content) == ("tool_calls", None)
        assert said.message.tool_calls[0].function.arguments == '{"city": "Bern"}'
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        await create(model=MODEL, messages=USER, response_format=form, n=2)
        await create(model=MODEL, messages=USER)
        grammars = [start.grammar for start in fake.started]
        assert "weather" in grammars[0]
        assert grammars[1] == grammars[2] != grammars[0]
        assert '"integer"' in grammars[1]
        assert grammars[3] == ""
        form["json_schema"] = {"name": "x", "schema": {"type": "integer", "minimum": 2, "maximum": 1}}
        with pytest.raises(openai.BadRequestError, match="greater than maximum") as caught:
            await create(model=MODEL, messages=USER, response_format=form)
        assert caught.value.param == "response_format"
        async with AsyncClient(f"127.0.0.1:{rig.gateway.grpc.port}") as own:
            await own.chat(USER, json_schema=schema)
            await own.chat(USER, choices=["yes", "no"])
            with pytest.raises(InvalidArgumentError, match="unclosed group"):
                await own.chat(USER, regex="(a")
        assert json.loads(fake.started[4].grammar)["grammars"][1]["json_schema"]["properties"] == schema["properties"]
        assert "yes" in fake.started[5].grammar
