"""LangChain's models of OpenAI's API and of Anthropic's."""

from typing import Any

import openai
from bench.clients.libraries import asked
from bench.clients.libraries.asked import CAPITAL, PERSON, TOOLS, WEATHER, Person
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

PLACE = asked.place()


def _model(model: str = PLACE.model, **more: Any) -> Any:
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 60, "max_retries": 0, "timeout": 120, **more}
    return ChatOpenAI(base_url=PLACE.v1, api_key="any", model=model, **options)


@asked.feature("chat")
def _chat() -> None:
    answer = _model().invoke(CAPITAL)
    assert "Paris" in answer.content
    assert answer.usage_metadata["output_tokens"] > 0


@asked.feature("streams")
def _streams() -> None:
    assert "".join(chunk.content for chunk in _model().stream(CAPITAL)) == _model().invoke(CAPITAL).content


@asked.feature("tools: auto")
def _called(model: Any = None, **more: Any) -> list[Any]:
    answer = (model or _model()).bind_tools(TOOLS, **more).invoke(WEATHER)
    for call in answer.tool_calls[:1]:  # the last of several may be cut off
        asked.check_call(call["name"], call["args"])
    assert answer.tool_calls or answer.content
    return list(answer.tool_calls)


@asked.feature("tools: required")
def _required() -> None:
    assert _called(tool_choice="any")


@asked.feature("tools: named")
def _named() -> None:
    (call,) = _called(tool_choice="time")
    assert call["name"] == "time"


@asked.feature("tools: none")
def _none() -> None:
    assert _called(tool_choice="none") == []


@asked.feature("tools: one call")
def _one_call() -> None:
    assert len(_called(tool_choice="any", parallel_tool_calls=False)) == 1


@asked.feature("tools: streamed")
def _streamed_calls() -> None:
    whole: Any = None
    for chunk in _model().bind_tools(TOOLS, tool_choice="any").stream(WEATHER):
        whole = chunk if whole is None else whole + chunk
    asked.check_call(whole.tool_calls[0]["name"], whole.tool_calls[0]["args"])


@asked.feature("tools: results")
def _results() -> None:
    message = _model().bind_tools(TOOLS, tool_choice="any").invoke(WEATHER)
    results = [ToolMessage(asked.RESULT, tool_call_id=call["id"]) for call in message.tool_calls]
    turns = [HumanMessage(WEATHER), message, *results]
    assert _model().bind_tools(TOOLS, tool_choice="none").invoke(turns).content


@asked.feature("structured output")
def _structured() -> None:
    for method in ("json_schema", "function_calling"):
        asked.check_person(_model().with_structured_output(Person, method=method).invoke(PERSON))


@asked.feature("embeddings")
def _embeddings() -> None:
    made = OpenAIEmbeddings(base_url=PLACE.v1, api_key="any", model=PLACE.model, check_embedding_ctx_length=False)
    first, second = made.embed_documents(["a cat", "a dog"])
    assert len(first) == len(second) > 1


@asked.feature("images")
def _images() -> None:
    _model(PLACE.seeing).invoke([HumanMessage(asked.shown()[0]["content"])])


@asked.feature("errors")
def _errors() -> None:
    asked.refused(lambda: _model("absent").invoke("x"), openai.NotFoundError, "served models")
    asked.refused(lambda: _model(temperature=5).invoke("x"), openai.BadRequestError, "temperature")


@asked.feature("responses")
def _responses() -> None:
    model = _model(use_responses_api=True, store=False)
    assert "Paris" in model.invoke(CAPITAL).text
    assert "Paris" in "".join(chunk.text for chunk in model.stream(CAPITAL))
    assert _called(model, tool_choice="any")


@asked.feature("messages")
def _messages() -> None:
    model: Any = ChatAnthropic(base_url=PLACE.url, api_key="any", model_name=PLACE.model, max_tokens=60, max_retries=0)
    assert model.invoke(CAPITAL).content
    assert "".join(chunk.text for chunk in model.stream(CAPITAL))
    assert _called(model, tool_choice="any")


if __name__ == "__main__":
    asked.tell()
