"""What no model can answer, by every API: a sentence that names the culprit, and other requests go on."""

import asyncio
import base64
import json
import struct
import zlib
from typing import Any

import grpc
import httpx2 as httpx
from PIL import Image
from tests.integration.gateway.test_gateway_images import chat, seeing
from tests.support.gateway_rig import MODEL, GatewayRig, Stream, failure_of
from tests.support.tiny_vision import encoded, picture

from polyfleet.v1 import inference_pb2 as pb
from polyfleet.wire.features import IMAGES

CHAT, TEXT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
USER = [{"role": "user", "content": "Hi"}]
PART = "messages[0].content[0]"
EMPTY = {"type": "integer", "minimum": 5, "maximum": 3}
NO_OBJECT = {"type": "array", "items": {}}
WIDE = {"type": "object", "properties": {f"p{number}": {"description": "x" * 90} for number in range(10_000)}}


def image(data: bytes) -> dict[str, Any]:
    return {"messages": chat(f"data:image/png;base64,{base64.b64encode(data).decode()}")["messages"]}


def deep(levels: int) -> str:
    """A schema of objects in objects."""
    return '{"properties":{"a":' * levels + "{}" + "}}" * levels


def bomb(side: int) -> bytes:
    """A PNG that says it is so large, and is some bytes long."""
    head = b"IHDR" + struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    body = b"IDAT" + zlib.compress(bytes(10_000))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(each) - 4) + each + struct.pack(">I", zlib.crc32(each)) for each in (head, body)
    )


def frames(form: str) -> bytes:
    """An animation."""
    first, *others = [Image.new("RGB", (8, 8), (number * 5, 0, 0)) for number in range(40)]
    return encoded(first, form, save_all=True, append_images=others)


def schema(found: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": found}}}


def tools(parameters: Any, **function: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f", "parameters": parameters, **function}}]}


NAMED = {"tool_choice": {"type": "function", "function": {"name": "g"}}}
NO_CALL = {"type": "function_call_output", "output": "x"}
BLOCK = {"type": "image", "source": {"type": "base64", "data": "aGVsbG8="}}
HTTP: dict[str, tuple[str, dict[str, Any] | str, str | None, str]] = {
    "schema that nothing fits": (CHAT, schema(EMPTY), "response_format", "minimum (5) is greater than maximum (3)"),
    "schema, 10,000 levels": (CHAT, deep(10_000), None, "The body is nested too deeply to be read."),
    "content, 10,000 levels": (CHAT, "[" * 10_000 + "]" * 10_000, None, "The body is nested too deeply to be read."),
    "regex bomb": (CHAT, {"guided_regex": "(a?){500}a{500}"}, "guided_regex", "too many expressions"),
    "regex that looks ahead": (CHAT, {"structured_outputs": {"regex": "(?=a)b"}}, "structured_outputs.regex", "look-a"),
    "regex of a text": (TEXT, {"guided_regex": "(a", "prompt": "x"}, "guided_regex", "unclosed group"),
    "grammar that does not parse": (CHAT, {"guided_grammar": "start: ("}, "guided_grammar", "Expected token ')'"),
    "grammar without an end": (CHAT, {"guided_grammar": "start: start"}, "guided_grammar", "leaves no text"),
    "two structures": (CHAT, {"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "beside guided_regex"),
    "tool that is not there": (CHAT, tools({}) | NAMED, "tool_choice", "names none of the tools: 'g'"),
    "no tool": (CHAT, {"tool_choice": "required"}, "tool_choice", "can't be required without tools"),
    "tool of no object": (CHAT, tools(NO_OBJECT), "tools[0].function.parameters.type", "must be object, not 'array'"),
    "tool's schema": (
        CHAT,
        tools({"properties": {"a": {"type": "strin"}}}) | {"tool_choice": "required"},
        "tools[0].function.parameters",
        "Invalid type: strin",
    ),
    "tool's schema of 1 MB": (CHAT, tools(WIDE) | {"tool_choice": "required"}, "messages", "maximum context length"),
    "no image": (CHAT, image(b"hello"), PART, "is no image of a kind that is read"),
    "image bomb": (CHAT, image(bomb(50_000)), PART, "has 50000 x 50000 pixels, but images may have 25,000,000"),
    "GIF of many frames": (CHAT, image(frames("GIF")), PART, "is animated or has several pages"),
    "WebP of many frames": (CHAT, image(frames("WEBP")), PART, "is animated or has several pages"),
    "half a JPEG": (CHAT, image(encoded(picture(60, 60), "JPEG")[:-200]), PART, "truncated or corrupt"),
    "SVG": (CHAT, image(b"<svg xmlns='http://www.w3.org/2000/svg'/>"), PART, "is no image of a kind that is read"),
    "bias of no token": (CHAT, {"logit_bias": {"99999": 1}}, "logit_bias", "below the vocabulary size"),
    "bias of a word": (CHAT, {"logit_bias": {"the": 1}}, "logit_bias", "expected `int`"),
    "10,000 stops": (CHAT, {"stop": ["x"] * 10_000}, "stop", "must be at most 16, not 10000"),
    "no tokens": (CHAT, {"max_tokens": 0}, "max_tokens", "must be 1 or more, not 0"),
    "less than none": (CHAT, {"max_completion_tokens": -1}, "max_completion_tokens", "must be 1 or more, not -1"),
    "21 alternatives": (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs", "from 0 to 20, not 21"),
    "21 alternatives of a text": (TEXT, {"prompt": "x", "logprobs": 21}, "logprobs", "from 0 to 20, not 21"),
    "too many choices": (CHAT, {"n": 17}, "n", "must be from 1 to 16, not 17"),
    "part of no kind": (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "hologram"}]}]},
        f"{PART}.type",
        "must be text or image_url, not hologram",
    ),
    "response's schema": (
        RESPONSES,
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": EMPTY}}},
        "text.format",
        "minimum (5) is greater than maximum (3)",
    ),
    "response's tool": (RESPONSES, {"tools": [{"type": "web_search"}]}, "tools[0].type", "must be function"),
    "response's item": (RESPONSES, {"input": [{"type": "hologram"}]}, "input[0].type", "not supported by this server"),
    "response's result of no call": (RESPONSES, {"input": [NO_CALL]}, "input[0].call_id", "is missing"),
    "stored response": (RESPONSES, {"store": True}, "store", "this server keeps no responses"),
    "message's image": (
        MESSAGES,
        {"messages": [{"role": "user", "content": [BLOCK]}]},
        f"{PART}.source.data",
        "is no image of a kind that is read",
    ),
    "message's tool": (
        MESSAGES,
        {"tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "tool", "name": "g"}},
        "tool_choice.name",
        "names none of the tools: 'g'",
    ),
    "message's name of a tool": (MESSAGES, {"tools": [{"name": "get weather"}]}, "tools[0].name", "not 'get weather'"),
    "message's schema": (
        MESSAGES,
        {"output_config": {"format": {"type": "json_schema", "schema": EMPTY}}},
        "output_config.format",
        "minimum (5) is greater than maximum (3)",
    ),
}
GOOD: dict[str, dict[str, Any]] = {
    CHAT: {"messages": USER, "max_tokens": 2},
    TEXT: {"max_tokens": 2},
    RESPONSES: {"input": USER, "max_output_tokens": 2},
    MESSAGES: {"messages": USER, "max_tokens": 2},
}


def body(path: str, changes: dict[str, Any] | str) -> bytes:
    """JSON; a text stands for a schema, as it is."""
    good = {"model": MODEL, **GOOD[path]}
    if isinstance(changes, str):
        return json.dumps(good | schema("HERE")).replace('"HERE"', changes).encode()
    if "max_completion_tokens" in changes:
        del good["max_tokens"]
    return json.dumps(good | changes).encode()


async def test_bad_inputs_over_http_are_told_in_a_sentence_and_others_go_on() -> None:
    headers = {"content-type": "application/json"}
    async with GatewayRig() as rig, httpx.AsyncClient(base_url=rig.http, trust_env=False, timeout=60) as http:
        worker = seeing("w-1", IMAGES)
        await rig.add(worker)
        for name, (path, changes, param, told) in HTTP.items():
            reply, other = await asyncio.gather(
                http.post(path, content=body(path, changes), headers=headers),
                http.post(CHAT, json={"model": MODEL, **GOOD[CHAT]}),
            )
            error = reply.json()["error"]
            assert (reply.status_code, error["type"]) == (400, "invalid_request_error"), name
            assert told in error["message"], name
            assert "\n" not in error["message"], name
            assert len(error["message"]) < 400, name
            if path == MESSAGES:
                assert error["message"].startswith(f"{param}: "), name
            else:
                assert (error["param"], other.status_code) == (param, 200), name
        assert len(worker.started) == len(HTTP)


def asks(**changes: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(**{"model": MODEL, "max_tokens": 2, "messages": [MESSAGE], **changes})


def shows(data: bytes) -> pb.ChatMessage:
    return pb.ChatMessage(role="user", parts=[pb.ContentPart(image=data)])


MESSAGE = pb.ChatMessage(role="user", content="Hi")
DEFINITION = json.dumps(tools({})["tools"][0])
GRPC: dict[str, tuple[pb.GenerateRequest, str, str]] = {
    "schema that nothing fits": (asks(structure=pb.Structure(json_schema=json.dumps(EMPTY))), "structure", "greater"),
    "schema, 1000 levels": (
        asks(structure=pb.Structure(json_schema=deep(1000))),
        "structure.json_schema",
        "is nested more than 100",
    ),
    "regex bomb": (asks(structure=pb.Structure(regex="(a?){500}a{500}")), "structure", "too many expressions"),
    "grammar without an end": (asks(structure=pb.Structure(grammar="start: start")), "structure", "leaves no text"),
    "grammar that does not parse": (
        asks(structure=pb.Structure(grammar="root ::= (")),
        "structure.grammar",
        "no valid",
    ),
    "tool that is not there": (
        asks(tools=[DEFINITION], tool_choice="required", tool_names=["g"]),
        "tool_names",
        "names none of the tools: 'g'",
    ),
    "tool's name": (asks(tools=[DEFINITION.replace('"f"', '"a b"')]), "tools[0].function.name", "A-Z a-z 0-9 _ -"),
    "tool of no JSON": (asks(tools=["{"]), "tools[0]", "is no valid JSON"),
    "tool, 1000 levels": (asks(tools=[deep(1000)]), "tools[0]", "is nested more than 100"),
    "no image": (asks(messages=[shows(b"hello")]), "messages[0].parts[0]", "is no image of a kind that is read"),
    "image bomb": (asks(messages=[shows(bomb(50_000))]), "messages[0].parts[0]", "has 50000 x 50000 pixels"),
    "animation": (asks(messages=[shows(frames("WEBP"))]), "messages[0].parts[0]", "is animated"),
    "bias of no token": (asks(logit_bias={99999: 1}), "logit_bias", "below the vocabulary size"),
    "10,000 stops": (asks(stop=["x"] * 10_000), "stop", "must be at most 16, not 10000"),
}


async def test_bad_inputs_over_grpc_are_told_in_a_sentence_and_others_go_on() -> None:
    async with GatewayRig() as rig:
        worker = seeing("w-1", IMAGES)
        await rig.add(worker)
        for name, (request, field, told) in GRPC.items():
            bad, good = rig.stub.Generate(request), Stream.read(rig.stub.Generate(asks()))
            failure, other = await asyncio.gather(failure_of(bad), good)
            assert failure.code is grpc.StatusCode.INVALID_ARGUMENT, name
            assert [*failure.fields] == [field], name
            assert told in failure.fields[field], name
            assert "\n" not in failure.message, name
            assert len(other.ids()) == 2, name
        assert len(worker.started) == len(GRPC)
