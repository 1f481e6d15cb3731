"""The official client of Anthropic's API."""

from typing import Any

import anthropic
from bench.clients.libraries import asked
from bench.clients.libraries.asked import CAPITAL, CITY, NAMES, PERSON, WEATHER, Person, user

PLACE = asked.place()
CLIENT: Any = anthropic.Anthropic(base_url=PLACE.url, api_key="any", timeout=120, max_retries=0)
MESSAGES = CLIENT.messages
EXTRA = {"temperature": 0}  # no argument of its own
GREEDY: dict[str, Any] = {"model": PLACE.model, "max_tokens": 80, "extra_body": EXTRA}
TOOLS = [{"name": name, "description": f"The {name} in a city.", "input_schema": CITY} for name in NAMES]


def _text(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


@asked.feature("chat")
def _chat() -> None:
    answer = MESSAGES.create(messages=user(CAPITAL), **GREEDY)
    assert "Paris" in _text(answer)
    assert answer.usage.output_tokens > 0
    read = answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)
    assert MESSAGES.count_tokens(model=PLACE.model, messages=user(CAPITAL)).input_tokens == read


@asked.feature("streams")
def _streams() -> None:
    with MESSAGES.stream(messages=user(CAPITAL), **GREEDY) as stream:
        text = "".join(stream.text_stream)
    assert text == _text(MESSAGES.create(messages=user(CAPITAL), **GREEDY))


@asked.feature("tools: auto")
def _called(**more: Any) -> list[Any]:
    answer = MESSAGES.create(messages=user(WEATHER), tools=TOOLS, **GREEDY, **more)
    calls = [block for block in answer.content if block.type == "tool_use"]
    for call in calls[:1]:  # the last of several may be cut off
        asked.check_call(call.name, call.input)
    assert calls or _text(answer)
    return calls


@asked.feature("tools: required")
def _required() -> None:
    assert _called(tool_choice={"type": "any"})


@asked.feature("tools: named")
def _named() -> None:
    (call,) = _called(tool_choice={"type": "tool", "name": "time"})
    assert call.name == "time"


@asked.feature("tools: none")
def _none() -> None:
    assert _called(tool_choice={"type": "none"}) == []


@asked.feature("tools: one call")
def _one_call() -> None:
    assert len(_called(tool_choice={"type": "any", "disable_parallel_tool_use": True})) == 1


@asked.feature("tools: streamed")
def _streamed_calls() -> None:
    with MESSAGES.stream(messages=user(WEATHER), tools=TOOLS, tool_choice={"type": "any"}, **GREEDY) as stream:
        kinds = {event.type for event in stream}
        (call, *_) = stream.get_final_message().content
    assert "input_json" in kinds, kinds
    asked.check_call(call.name, call.input)


@asked.feature("tools: results")
def _results() -> None:
    answer = MESSAGES.create(messages=user(WEATHER), tools=TOOLS, tool_choice={"type": "any"}, **GREEDY)
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": asked.RESULT, "is_error": False}
        for call in answer.content
    ]
    turns = [*user(WEATHER), {"role": "assistant", "content": answer.content}, {"role": "user", "content": results}]
    assert _text(MESSAGES.create(messages=turns, tools=TOOLS, tool_choice={"type": "none"}, **GREEDY))


@asked.feature("structured output")
def _structured() -> None:
    asked.check_person(MESSAGES.parse(messages=user(PERSON), output_format=Person, **GREEDY).parsed_output)


@asked.feature("images")
def _images() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": asked.picture()}
    content = [{"type": "image", "source": source}, {"type": "text", "text": "What is it?"}]
    MESSAGES.create(messages=[{"role": "user", "content": content}], **{**GREEDY, "model": PLACE.seeing})


@asked.feature("errors")
def _errors() -> None:
    absent = {**GREEDY, "model": "absent"}
    asked.refused(lambda: MESSAGES.create(messages=user("x"), **absent), anthropic.NotFoundError, "served models")
    hot = {**GREEDY, "extra_body": {"temperature": 5}}
    asked.refused(lambda: MESSAGES.create(messages=user("x"), **hot), anthropic.BadRequestError, "temperature")


if __name__ == "__main__":
    asked.tell()
