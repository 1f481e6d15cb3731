"""The official client of OpenAI's API."""

from typing import Any

import openai
from bench.clients.libraries import asked
from bench.clients.libraries.asked import CAPITAL, PERSON, TOOLS, WEATHER, Person, user

PLACE = asked.place()
CLIENT: Any = openai.OpenAI(base_url=PLACE.v1, api_key="any", timeout=120, max_retries=0)
CHATS = CLIENT.chat.completions
GREEDY: dict[str, Any] = {"model": PLACE.model, "temperature": 0, "max_tokens": 60}


@asked.feature("chat")
def _chat() -> None:
    answer = CHATS.create(messages=user(CAPITAL), **GREEDY)
    assert "Paris" in answer.choices[0].message.content
    assert answer.usage.completion_tokens > 0


@asked.feature("streams")
def _streams() -> None:
    options = {"include_usage": True}
    chunks = list(CHATS.create(messages=user(CAPITAL), stream=True, stream_options=options, **GREEDY))
    text = "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)
    whole = CHATS.create(messages=user(CAPITAL), **GREEDY)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage or chunks[-1].usage.total_tokens == whole.usage.total_tokens


@asked.feature("tools: auto")
def _called(**more: Any) -> list[Any]:
    answer = CHATS.create(messages=user(WEATHER), tools=TOOLS, **GREEDY, **more).choices[0]
    for call in (answer.message.tool_calls or [])[:1]:  # the last of several may be cut off
        asked.check_call(call.function.name, call.function.arguments)
    assert answer.message.tool_calls or answer.message.content
    return answer.message.tool_calls or []


@asked.feature("tools: streamed")
def _streamed_calls() -> None:
    options = {"tool_choice": "required", "parallel_tool_calls": False}
    with CHATS.stream(messages=user(WEATHER), tools=TOOLS, **options, **GREEDY) as stream:
        kinds = {event.type for event in stream}
        (call, *_) = stream.get_final_completion().choices[0].message.tool_calls
    assert "tool_calls.function.arguments.done" in kinds, kinds
    asked.check_call(call.function.name, call.function.arguments)


@asked.feature("tools: results")
def _results() -> None:
    message = CHATS.create(messages=user(WEATHER), tools=TOOLS, tool_choice="required", **GREEDY).choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": asked.RESULT} for call in message.tool_calls]
    turns = [*user(WEATHER), message, *results]
    assert CHATS.create(messages=turns, tools=TOOLS, tool_choice="none", **GREEDY).choices[0].message.content


@asked.feature("structured output")
def _structured() -> None:
    answer = CHATS.parse(messages=user(PERSON), response_format=Person, **GREEDY)
    asked.check_person(answer.choices[0].message.parsed)
    with CHATS.stream(messages=user(PERSON), response_format=Person, **GREEDY) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.parsed == answer.choices[0].message.parsed


@asked.feature("n, logprobs")
def _choices() -> None:
    answer = CHATS.create(messages=user(CAPITAL), n=2, logprobs=True, top_logprobs=2, seed=1, **GREEDY)
    first, second = answer.choices
    assert first.message.content == second.message.content
    assert len(first.logprobs.content) > 0
    assert all(len(each.top_logprobs) == 2 for each in first.logprobs.content)


@asked.feature("embeddings")
def _embeddings() -> None:
    first, second = CLIENT.embeddings.create(model=PLACE.model, input=["a cat", "a dog"]).data
    assert len(first.embedding) == len(second.embedding) > 1
    assert first.embedding != second.embedding


@asked.feature("images")
def _images() -> None:
    CHATS.create(messages=asked.shown(), **{**GREEDY, "model": PLACE.seeing})


@asked.feature("errors")
def _errors() -> None:
    asked.refused(lambda: CHATS.create(messages=user("x"), model="absent"), openai.NotFoundError, "served models")
    hot = {**GREEDY, "temperature": 5}
    asked.refused(lambda: CHATS.create(messages=user("x"), **hot), openai.BadRequestError, "temperature", "from 0 to 2")
    loose = {"not": {"type": "string"}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": loose}}
    asked.refused(
        lambda: CHATS.create(messages=user("x"), response_format=form, **GREEDY), openai.BadRequestError, "not"
    )


@asked.feature("responses")
def _responses() -> None:
    form: dict[str, Any] = {"model": PLACE.model, "temperature": 0, "max_output_tokens": 60}
    answer = CLIENT.responses.create(input=CAPITAL, **form)
    with CLIENT.responses.stream(input=CAPITAL, **form) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert "Paris" in answer.output_text
    assert text == answer.output_text
    asked.check_person(CLIENT.responses.parse(input=PERSON, text_format=Person, **form).output_parsed)
    tools = [{"type": "function", **each["function"]} for each in TOOLS]
    (call, *_) = CLIENT.responses.create(input=WEATHER, tools=tools, tool_choice="required", **form).output
    asked.check_call(call.name, call.arguments)
    turns = [*user(WEATHER), call, {"type": "function_call_output", "call_id": call.call_id, "output": asked.RESULT}]
    assert CLIENT.responses.create(input=turns, tools=tools, tool_choice="none", **form).output_text


if __name__ == "__main__":
    asked.choices(_called)
    asked.tell()
