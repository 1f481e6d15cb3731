"""LiteLLM, as a client of OpenAI's API and of Anthropic's."""

from typing import Any

import litellm
from bench.clients.libraries import asked
from bench.clients.libraries.asked import CAPITAL, PERSON, TOOLS, WEATHER, Person, user

PLACE = asked.place()
WHERE: dict[str, Any] = {"api_base": PLACE.v1, "api_key": "any", "timeout": 120, "num_retries": 0}
GREEDY: dict[str, Any] = {**WHERE, "model": f"openai/{PLACE.model}", "temperature": 0, "max_tokens": 60}


@asked.feature("chat")
def _chat() -> None:
    assert "Paris" in litellm.completion(messages=user(CAPITAL), **GREEDY).choices[0].message.content


@asked.feature("streams")
def _streams() -> None:
    chunks = litellm.completion(messages=user(CAPITAL), stream=True, **GREEDY)
    text = "".join(each.choices[0].delta.content or "" for each in chunks)
    assert text == litellm.completion(messages=user(CAPITAL), **GREEDY).choices[0].message.content


@asked.feature("tools: auto")
def _called(**more: Any) -> list[Any]:
    message = litellm.completion(messages=user(WEATHER), tools=TOOLS, **GREEDY, **more).choices[0].message
    for call in (message.tool_calls or [])[:1]:  # the last of several may be cut off
        asked.check_call(call.function.name, call.function.arguments)
    assert message.tool_calls or message.content
    return message.tool_calls or []


@asked.feature("tools: streamed")
def _streamed_calls() -> None:
    chunks = list(
        litellm.completion(messages=user(WEATHER), tools=TOOLS, tool_choice="required", stream=True, **GREEDY)
    )
    (call, *_) = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls
    asked.check_call(call.function.name, call.function.arguments)


@asked.feature("tools: results")
def _results() -> None:
    message = litellm.completion(messages=user(WEATHER), tools=TOOLS, tool_choice="required", **GREEDY)
    message = message.choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": asked.RESULT} for call in message.tool_calls]
    turns = [*user(WEATHER), message.model_dump(), *results]
    assert litellm.completion(messages=turns, tools=TOOLS, tool_choice="none", **GREEDY).choices[0].message.content


@asked.feature("structured output")
def _structured() -> None:
    answer = litellm.completion(messages=user(PERSON), response_format=Person, **GREEDY).choices[0].message
    asked.check_person(Person.model_validate_json(answer.content))


@asked.feature("embeddings")
def _embeddings() -> None:
    answer = litellm.embedding(model=f"openai/{PLACE.model}", input=["a cat", "a dog"], **WHERE)
    first, second = answer.data
    assert len(first["embedding"]) == len(second["embedding"]) > 1


@asked.feature("images")
def _images() -> None:
    litellm.completion(messages=asked.shown(), **{**GREEDY, "model": f"openai/{PLACE.seeing}"})


@asked.feature("errors")
def _errors() -> None:
    absent, hot = {**GREEDY, "model": "openai/absent"}, {**GREEDY, "temperature": 5}
    asked.refused(lambda: litellm.completion(messages=user("x"), **absent), litellm.NotFoundError, "served models")
    asked.refused(lambda: litellm.completion(messages=user("x"), **hot), litellm.BadRequestError, "temperature")
    long = user("word " * 20_000)
    asked.refused(lambda: litellm.completion(messages=long, **GREEDY), litellm.ContextWindowExceededError)


@asked.feature("responses")
def _responses() -> None:
    where = {**WHERE, "model": f"openai/{PLACE.model}", "temperature": 0, "max_output_tokens": 60}
    where.pop("num_retries")
    answer = litellm.responses(input=CAPITAL, store=False, **where)
    assert "Paris" in answer.output[0].content[0].text


@asked.feature("messages")
def _messages() -> None:
    where = {**GREEDY, "api_base": PLACE.url, "model": f"anthropic/{PLACE.model}"}
    assert "Paris" in litellm.completion(messages=user(CAPITAL), **where).choices[0].message.content
    message = litellm.completion(messages=user(WEATHER), tools=TOOLS, tool_choice="required", **where)
    (call, *_) = message.choices[0].message.tool_calls
    asked.check_call(call.function.name, call.function.arguments)


if __name__ == "__main__":
    litellm.suppress_debug_info = True
    asked.choices(_called)
    asked.tell()
