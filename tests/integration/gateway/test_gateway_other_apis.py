"""Responses, Anthropic's messages and tokens through a whole gateway, streamed and not."""

import json
from typing import Any

import httpx2 as httpx
import openai
import pytest
from tests.support.fake_worker import FakeWorker
from tests.support.gateway_rig import MODEL, VOCABULARY, GatewayRig
from tests.support.text_assets import CHATML, assets_document, byte_level_tokenizer

from polyfleet.client import AsyncClient

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
ARGUMENTS = '{"city": "Zürich"}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
ANSWER = f"<think>\nHm.\n</think>\n\nLet me see. {CALL}"
RESPONSE_TOOLS: Any = [{"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": False}]
MESSAGE_TOOLS: Any = [{"name": "weather", "input_schema": PARAMETERS}]
TOKENS = byte_level_tokenizer()
HI: Any = [{"role": "user", "content": "Hi"}]


def worker(answer: str = ANSWER, **options: Any) -> FakeWorker:
    """Answers so, to whatever."""
    ids = [*byte_level_tokenizer().encode(answer).ids, 2]
    document = assets_document(chat_template=CHATML + "{# </think> #}")
    options |= {"assets": document, "vocabulary_size": VOCABULARY, "end_token_ids": [2]}
    return FakeWorker("w-1", MODEL, tokens=lambda _prompt, index, _choice: ids[index], **options)


async def test_responses_with_the_openai_client() -> None:
    fake = worker()
    async with GatewayRig() as rig, openai.AsyncOpenAI(base_url=f"{rig.http}/v1", api_key="x", max_retries=0) as client:
        await rig.add(fake)
        create: Any = client.responses.create
        said = await create(model=MODEL, input="Hi", instructions="Be brief.", tools=RESPONSE_TOOLS)
        assert [item.type for item in said.output] == ["reasoning", "message", "function_call"]
        assert (said.status, said.output_text, said.output[0].content[0].text) == ("completed", "Let me see.", "Hm.")
        call = said.output[2]
        assert (call.name, call.arguments, call.call_id[:5]) == ("weather", ARGUMENTS, "call_")
        thought = [TOKENS.decode(ids[: count + 1]) for ids in [TOKENS.encode(ANSWER).ids] for count in range(len(ids))]
        num_thought = sum("<think>" in each and "</think>" not in each for each in thought)
        assert 0 < said.usage.output_tokens_details.reasoning_tokens == num_thought < said.usage.output_tokens - 10
        history = [*HI, *said.output, {"type": "function_call_output", "call_id": call.call_id, "output": "3"}]
        short = await create(model=MODEL, input=history, max_output_tokens=5)
        assert (short.status, short.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        prompt = byte_level_tokenizer().decode(list(fake.started[-1].prompt_ids), skip_special_tokens=False)
        assert f"Let me see.\n{CALL}" in prompt
        assert "<tool_response>\n3\n</tool_response>" in prompt
        form = {"format": {"type": "json_schema", "name": "x", "schema": PARAMETERS}}
        await create(model=MODEL, input="Hi", text=form)
        assert '"city"' in fake.started[-1].grammar
        kinds, text, arguments = list[str](), "", ""
        final: Any = None
        async for event in await create(model=MODEL, input=HI, tools=RESPONSE_TOOLS, stream=True):
            assert event.sequence_number == len(kinds)
            kinds.append(event.type)
            text += event.delta if event.type == "response.output_text.delta" else ""
            arguments += event.delta if event.type == "response.function_call_arguments.delta" else ""
            final = event
        assert (text, arguments) == ("Let me see.", ARGUMENTS)
        assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
        assert kinds.count("response.output_item.done") == 3
        assert (kinds[-1], final.response.output_text) == ("response.completed", "Let me see.")
        assert final.response.usage.output_tokens_details.reasoning_tokens == num_thought


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "Hi", "store": True}, "store"),
        ({"input": "Hi", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "Hi", "conversation": "conv_1"}, "conversation"),
        ({"input": []}, "input"),
        ({"input": [{"type": "image"}]}, "input[0].type"),
        ({"input": HI, "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": HI, "tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": HI, "text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"input": HI, "temprature": 1}, "temprature"),
        ({"input": [*HI, {"role": "critic", "content": "Bad."}], "instructions": "Be brief."}, "input[1].role"),
    ],
)
async def test_what_responses_can_not_do_is_named(body: dict[str, Any], param: str) -> None:
    async with GatewayRig() as rig, httpx.AsyncClient(base_url=rig.http, trust_env=False, timeout=60) as http:
        await rig.add(worker())
        reply = await http.post("/v1/responses", json=body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


async def test_a_message_that_the_assistant_has_begun_goes_on() -> None:
    fake = worker()
    async with GatewayRig() as rig, httpx.AsyncClient(base_url=rig.http, trust_env=False, timeout=60) as http:
        await rig.add(fake)
        begun = [*HI, {"role": "assistant", "content": [{"type": "text", "text": "It is {"}]}]
        await http.post("/v1/messages", json={"model": MODEL, "max_tokens": 9, "messages": begun})
        prompt = (await http.post("/detokenize", json={"tokens": list(fake.started[-1].prompt_ids)})).json()["prompt"]
        assert prompt.endswith("assistant\nIt is {")


async def test_messages_whole_and_streamed() -> None:
    fake = worker()
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "3 degrees"}]}
    use = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Bern"}}
    thought = {"type": "thinking", "thinking": "Hm.", "signature": ""}
    turns = [*HI, {"role": "assistant", "content": [thought, use]}, {"role": "user", "content": [result]}]
    body = {"model": MODEL, "max_tokens": 200, "system": "Be brief.", "messages": turns, "tools": MESSAGE_TOOLS}
    async with GatewayRig() as rig, httpx.AsyncClient(base_url=rig.http, trust_env=False, timeout=60) as http:
        await rig.add(fake)
        said = (await http.post("/v1/messages", json=body, headers={"x-api-key": "k"})).json()
        assert [block["type"] for block in said["content"]] == ["thinking", "text", "tool_use"]
        assert (said["content"][1]["text"], said["content"][2]["input"]) == ("Let me see.", {"city": "Zürich"})
        assert (said["type"], said["role"], said["stop_reason"]) == ("message", "assistant", "tool_use")
        usage = said["usage"]
        assert usage["input_tokens"] == len(fake.started[0].prompt_ids)
        count = (
            await http.post("/v1/messages/count_tokens", json={k: body[k] for k in body if k != "max_tokens"})
        ).json()
        assert count == {"input_tokens": usage["input_tokens"]}
        events, text, arguments = [], "", ""
        async with http.stream("POST", "/v1/messages", json=body | {"stream": True}) as reply:
            lines = [line async for line in reply.aiter_lines() if line.startswith(("event:", "data:"))]
        for name, data in zip(lines[::2], lines[1::2], strict=True):
            event = json.loads(data.removeprefix("data: "))
            assert name == f"event: {event['type']}"
            events.append(event)
            text += event.get("delta", {}).get("text", "")
            arguments += event.get("delta", {}).get("partial_json", "")
        assert (text, arguments) == ("Let me see.", ARGUMENTS)
        kinds = [event["type"] for event in events]
        assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
        assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 3
        assert events[-2]["delta"]["stop_reason"] == "tool_use"
        short = (await http.post("/v1/messages", json=body | {"stop_sequences": ["never", "me see"]})).json()
        assert (short["stop_reason"], short["stop_sequence"]) == ("stop_sequence", "me see")
        stopped = (await http.post("/v1/messages", json=body | {"stop_sequences": ["me see"], "stream": True})).text
        assert '"stop_reason":"stop_sequence","stop_sequence":"me see"' in stopped
        choice = {"type": "tool", "name": "weather"}
        await http.post("/v1/messages", json=body | {"tool_choice": choice, "stop_sequences": ["x"]})
        assert "weather" in fake.started[-1].grammar


@pytest.mark.parametrize(
    ("changes", "status", "kind", "told"),
    [
        ({"model": "other"}, 404, "not_found_error", "other"),
        ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens"),
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens"),
        ({"messages": []}, 400, "invalid_request_error", "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400, "invalid_request_error", "content"),
        ({"tool_choice": {"type": "tool", "name": "x"}}, 400, "invalid_request_error", "tool_choice"),
        ({"temprature": 1}, 400, "invalid_request_error", "temprature"),
    ],
)
async def test_errors_of_messages_are_anthropics(changes: dict[str, Any], status: int, kind: str, told: str) -> None:
    body = {"model": MODEL, "max_tokens": 9, "messages": HI, "tools": MESSAGE_TOOLS} | changes
    async with GatewayRig() as rig, httpx.AsyncClient(base_url=rig.http, trust_env=False, timeout=60) as http:
        await rig.add(worker())
        reply = await http.post("/v1/messages", json=body)
        error = reply.json()
        assert (reply.status_code, error["type"], error["error"]["type"]) == (status, "error", kind)
        assert told in error["error"]["message"]
        assert error["request_id"] == reply.headers["x-request-id"]


async def test_clients_whose_tool_runner_asks_for_a_thread_are_told_to_go_on_without() -> None:
    """By the details that Anthropic's own client looks for."""
    body = {"model": MODEL, "max_tokens": 9, "messages": HI, "thread": {"type": "create"}}
    async with GatewayRig() as rig, httpx.AsyncClient(base_url=rig.http, trust_env=False, timeout=60) as http:
        await rig.add(worker())
        refused = await http.post("/v1/messages", json=body)
        assert refused.status_code == 400
        details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
        assert refused.json()["error"]["details"] == details
        assert (await http.post("/v1/messages", json=body | {"thread": None})).status_code == 200


async def test_a_text_may_be_repeated_before_its_answer() -> None:
    async with GatewayRig() as rig, httpx.AsyncClient(base_url=rig.http, trust_env=False, timeout=60) as http:
        await rig.add(worker("said"))
        for prompt in ("the fox <|im_end|>", byte_level_tokenizer().encode("the fox <|im_end|>").ids):
            said = (await http.post("/v1/completions", json={"prompt": prompt, "echo": True, "n": 2})).json()
            assert [choice["text"] for choice in said["choices"]] == ["the fox <|im_end|>said"] * 2


async def test_tokens_there_and_back() -> None:
    async with GatewayRig() as rig, httpx.AsyncClient(base_url=rig.http, trust_env=False, timeout=60) as http:
        await rig.add(worker())
        found = (await http.post("/tokenize", json={"prompt": "the <|im_end|> é", "return_token_strs": True})).json()
        assert (found["count"], found["max_model_len"]) == (len(found["tokens"]), 2048)
        assert len(found["token_strs"]) == found["count"]
        assert 2 in found["tokens"]
        back = (await http.post("/detokenize", json={"tokens": found["tokens"]})).json()
        assert back == {"prompt": "the <|im_end|> é"}
        chat = (await http.post("/tokenize", json={"messages": HI})).json()
        assert chat["tokens"][0] == 1
        assert "token_strs" not in chat
        async with AsyncClient(f"127.0.0.1:{rig.gateway.grpc.port}") as client:
            assert await client.detokenize(found["tokens"]) == "the <|im_end|> é"
        for path, body, param in (
            ("/tokenize", {}, "prompt"),
            ("/tokenize", {"prompt": "a", "messages": HI}, "prompt"),
            ("/detokenize", {"tokens": [99999]}, "tokens"),
            ("/detokenize", {"tokens": [-1]}, "tokens"),
        ):
            reply = await http.post(path, json=body)
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
