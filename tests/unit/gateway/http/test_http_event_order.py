"""Streams of Responses and Messages: put together as clients' libraries do, the events are the answer."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from polyfleet.gateway.errors import Unavailable
from polyfleet.gateway.http.decoding import decode
from polyfleet.gateway.http.messages.body import MessagesBody
from polyfleet.gateway.http.messages.reply import MessageWriter
from polyfleet.gateway.http.openai.writer import Writer
from polyfleet.gateway.http.responses.body import ResponsesBody
from polyfleet.gateway.http.responses.reply import ResponseWriter
from polyfleet.wire.answers import Delta, FinishReason, Usage
from polyfleet.wire.gathered import GatheredChoice
from polyfleet.wire.tools import ToolCallDelta

USAGE = Usage(prompt_tokens=7, completion_tokens=5, cached_tokens=2, reasoning_tokens=1)
Event = dict[str, Any]


def call(index: int, *arguments: str, name: str = "weather") -> list[Delta]:
    """The deltas of a call, its arguments in these pieces."""
    begun = Delta(0, tool_calls=(ToolCallDelta(index, f"c{index}", name),))
    return [begun, *(Delta(0, tool_calls=(ToolCallDelta(index, arguments=each),)) for each in arguments)]


THOUGHT = [Delta(0, reasoning="Is it "), Delta(0, reasoning="cold?")]
TEXT = [Delta(0, text="Let me "), Delta(0, text="see.")]
CALLS = [*call(0, '{"city"', ': "Bern"}'), *call(1, "{}", name="time")]
WITHDRAWN = [*call(0, '{"city": '), Delta(0, text="{oops}", tool_calls=(ToolCallDelta(0, withdrawn=True),))]
BOTH = [Delta(0, text="Look.", reasoning="Hm.", tool_calls=CALLS[0].tool_calls), *CALLS[1:]]
ANSWERS: dict[str, tuple[list[Delta], FinishReason]] = {
    "nothing": ([], FinishReason.STOP),
    "text": (TEXT, FinishReason.STOP),
    "cut text": ([*THOUGHT, *TEXT], FinishReason.LENGTH),
    "calls": ([*THOUGHT, *TEXT, *CALLS], FinishReason.TOOL_CALLS),
    "at once": (BOTH, FinishReason.TOOL_CALLS),
    "text between calls": ([*CALLS[:3], *TEXT, *CALLS[3:]], FinishReason.TOOL_CALLS),
    "cut call": (call(0, '{"city": "Be'), FinishReason.LENGTH),
    "withdrawn": ([*TEXT, *WITHDRAWN], FinishReason.STOP),
    "withdrawn, then one": ([*WITHDRAWN, *call(1, "{}", name="time")], FinishReason.TOOL_CALLS),
}


def events_of(writer: Writer, answer: Sequence[Delta], reason: FinishReason | None) -> list[Event]:
    """What is sent; without a reason it fails in the midst."""
    sent = [writer.begin(), *map(writer.events, answer)]
    if reason is None:
        sent.append(writer.failure(Unavailable("All workers are gone.")))
    else:
        sent += [writer.events(Delta(0, finish_reason=reason)), writer.end(USAGE)]
    events = []
    for each in b"".join(sent).decode().strip().split("\n\n"):
        name, data = each.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def whole(writer: Writer, answer: Sequence[Delta], reason: FinishReason) -> Event:
    """The answer, not streamed."""
    gathered = GatheredChoice()
    for delta in [*answer, Delta(0, finish_reason=reason)]:
        gathered.add(delta)
    body: Event = json.loads(writer.whole({0: gathered}, USAGE))
    return body


def response_writer() -> ResponseWriter:
    return ResponseWriter(decode(b'{"input": "hi", "instructions": "Be brief."}', ResponsesBody), "r", "m")


def message_writer() -> MessageWriter:
    return MessageWriter(decode(b'{"messages": [], "max_tokens": 9}', MessagesBody), "r", "m")


def response_of(events: Sequence[Event]) -> tuple[list[Event], list[Event]]:
    """The items as the increments make them, and as they were told to be when they ended."""
    items, done = list[Event](), list[Event]()
    for event in events:
        kind = event["type"].removeprefix("response.")
        item = items[event["output_index"]] if "item_id" in event else {}
        assert item.get("id") == event.get("item_id")
        if kind == "output_item.added":
            assert (event["output_index"], event["item"]["status"]) == (len(items), "in_progress")
            assert len(done) == len(items)
            items.append(event["item"])
        elif kind == "content_part.added":
            assert event["content_index"] == len(item["content"])
            item["content"].append(event["part"])
        elif kind in ("output_text.delta", "reasoning_text.delta"):
            item["content"][event["content_index"]]["text"] += event["delta"]
        elif kind == "function_call_arguments.delta":
            item["arguments"] += event["delta"]
        elif kind == "function_call_arguments.done":
            assert (event["arguments"], event["name"]) == (item["arguments"], item["name"])
        elif kind in ("output_text.done", "reasoning_text.done"):
            assert event["text"] == item["content"][event["content_index"]]["text"]
        elif kind == "content_part.done":
            assert event["part"] == item["content"][event["content_index"]]
        elif kind == "output_item.done":
            done.append(event["item"])
    return items, done


def plain(item: Event) -> Event:
    """An item without what ends it, nor the id that a withdrawn call loses."""
    return {key: each for key, each in item.items() if key not in ("status", "call_id")}


@pytest.mark.parametrize("name", ANSWERS)
def test_responses_are_what_their_events_make(name: str) -> None:
    answer, reason = ANSWERS[name]
    events = events_of(response_writer(), answer, reason)
    assert [each["sequence_number"] for each in events] == list(range(len(events)))
    assert [each["type"] for each in events[:2]] == ["response.created", "response.in_progress"]
    assert all(each["response"]["status"] == "in_progress" for each in events[:2])
    items, done = response_of(events)
    final = events[-1]["response"]
    short = reason is FinishReason.LENGTH
    status = "incomplete" if short else "completed"
    assert (events[-1]["type"], final["status"]) == (f"response.{status}", status)
    assert [plain(each) for each in items] == [plain(each) for each in done]
    withdrawn = [each for each in done if not each.get("call_id", "c")]
    assert [each["status"] for each in withdrawn] == ["incomplete"] * name.count("withdrawn")
    assert final["output"] == [each for each in done if each not in withdrawn]
    assert [each["status"] for each in final["output"]][-1:] == [status] * bool(final["output"])
    assert {each["status"] for each in final["output"][:-1]} <= {"completed"}
    if name not in ("text between calls", "withdrawn", "withdrawn, then one"):  # there, blocks stand elsewhere
        again = whole(response_writer(), answer, reason)
        same = {"created_at": 0}
        assert again | same == final | same


def message_of(events: Sequence[Event]) -> Event:
    """The message as the increments make it."""
    message: Event = events[0]["message"]
    pieces, closed = list[str](), 0
    for event in events[1:]:
        kind = event["type"]
        if kind == "content_block_start":
            assert event["index"] == len(message["content"]) == closed
            message["content"].append(event["content_block"])
            pieces.append("")
        elif kind == "content_block_delta":
            assert event["index"] == len(pieces) - 1 == closed
            (text,) = (each for key, each in event["delta"].items() if key != "type")
            assert event["delta"]["type"] in ("text_delta", "thinking_delta", "input_json_delta")
            pieces[-1] += text
        elif kind == "content_block_stop":
            assert event["index"] == closed
            closed += 1
        elif kind == "message_delta":
            message |= event["delta"] | {"usage": event["usage"]}
    assert closed == len(pieces)
    for block, text in zip(message["content"], pieces, strict=True):
        if block["type"] == "tool_use":
            assert block["input"] == {}
            block["input"] = text
        else:
            assert block[block["type"]] == ""
            block[block["type"]] = text
    return message


@pytest.mark.parametrize("name", ANSWERS)
def test_messages_are_what_their_events_make(name: str) -> None:
    answer, reason = ANSWERS[name]
    events = events_of(message_writer(), answer, reason)
    kinds = [each["type"] for each in events]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    message, again = message_of(events), whole(message_writer(), answer, reason)
    said = {FinishReason.STOP: "end_turn", FinishReason.LENGTH: "max_tokens", FinishReason.TOOL_CALLS: "tool_use"}
    assert message["stop_reason"] == again["stop_reason"] == said[reason]
    assert message["usage"] == again["usage"]
    assert (message["usage"]["input_tokens"], message["usage"]["cache_read_input_tokens"]) == (5, 2)
    if name in ("nothing", "text", "cut text", "calls", "at once"):  # else one is cut, or stands elsewhere
        for block in message["content"]:
            if block["type"] == "tool_use":
                block["input"] = json.loads(block["input"])
        assert message == again


@pytest.mark.parametrize("answer", [[], TEXT, CALLS[:2]])
def test_what_fails_in_the_midst_ends_with_one_error(answer: list[Delta]) -> None:
    response = events_of(response_writer(), answer, None)
    kinds = [each["type"] for each in response]
    assert (kinds.count("error"), kinds[-1]) == (1, "error")
    told = {"code": "unavailable", "message": "All workers are gone.", "param": None}
    assert response[-1] == {"type": "error", "sequence_number": len(kinds) - 1, **told}
    message = events_of(message_writer(), answer, None)
    assert message[-1]["error"] == {"type": "overloaded_error", "message": "All workers are gone."}
    assert [each["type"] for each in message].count("error") == 1
