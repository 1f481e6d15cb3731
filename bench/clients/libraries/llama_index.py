"""LlamaIndex, by its packages for servers that are like OpenAI's."""

from typing import Any

import openai
from bench.clients.libraries import asked
from bench.clients.libraries.asked import CAPITAL, PERSON, WEATHER, Person
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, MessageRole, TextBlock
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike

PLACE = asked.place()


def weather(city: str) -> str:
    """The weather in a city."""
    return asked.RESULT


def time(city: str) -> str:
    """The time in a city."""
    return "noon"


TOOLS = [FunctionTool.from_defaults(each) for each in (weather, time)]


def _model(model: str = PLACE.model, **more: Any) -> Any:
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 80, "max_retries": 0, "timeout": 120, **more}
    kind = {"is_chat_model": True, "is_function_calling_model": True, "should_use_structured_outputs": True}
    return OpenAILike(model=model, api_base=PLACE.v1, api_key="any", context_window=2048, **kind, **options)


def _user(text: str) -> list[Any]:
    return [ChatMessage(role=MessageRole.USER, content=text)]


@asked.feature("chat")
def _chat() -> None:
    assert "Paris" in _model().chat(_user(CAPITAL)).message.content
    assert _model().complete(CAPITAL).text


@asked.feature("streams")
def _streams() -> None:
    text = "".join(each.delta or "" for each in _model().stream_chat(_user(CAPITAL)))
    assert text == _model().chat(_user(CAPITAL)).message.content


@asked.feature("tools: auto")
def _called(**more: Any) -> list[Any]:
    model = _model()
    answer = model.chat_with_tools(TOOLS, user_msg=WEATHER, **more)
    calls = model.get_tool_calls_from_response(answer, error_on_no_tool_call=False)
    for call in calls[:1]:  # the last of several may be cut off
        asked.check_call(call.tool_name, call.tool_kwargs)
    assert calls or answer.message.content
    return list(calls)


@asked.feature("tools: required")
def _required() -> None:
    assert _called(tool_required=True)


@asked.feature("tools: named")
def _named() -> None:
    (call,) = _called(tool_choice="time")
    assert call.tool_name == "time"


@asked.feature("tools: none")
def _none() -> None:
    assert _called(tool_choice="none") == []


@asked.feature("tools: one call")
def _one_call() -> None:
    assert len(_called(tool_required=True, allow_parallel_tool_calls=False)) == 1


@asked.feature("tools: streamed")
def _streamed_calls() -> None:
    model = _model()
    *_, last = model.stream_chat_with_tools(TOOLS, user_msg=WEATHER, tool_required=True)
    (call, *_) = model.get_tool_calls_from_response(last)
    asked.check_call(call.tool_name, call.tool_kwargs)


@asked.feature("tools: results")
def _results() -> None:
    model = _model()
    answer = model.chat_with_tools(TOOLS, user_msg=WEATHER, tool_required=True, allow_parallel_tool_calls=False)
    (call,) = model.get_tool_calls_from_response(answer)
    result = ChatMessage(role=MessageRole.TOOL, content=asked.RESULT, additional_kwargs={"tool_call_id": call.tool_id})
    history = [*_user(WEATHER), answer.message, result]
    assert model.chat_with_tools(TOOLS, chat_history=history, tool_choice="none").message.content


@asked.feature("structured output")
def _structured() -> None:
    asked.check_person(_model().structured_predict(Person, PromptTemplate(PERSON)))


@asked.feature("embeddings")
def _embeddings() -> None:
    made: Any = OpenAILikeEmbedding(model_name=PLACE.model, api_base=PLACE.v1, api_key="any")
    first, second = made.get_text_embedding_batch(["a cat", "a dog"])
    assert len(first) == len(second) > 1


@asked.feature("images")
def _images() -> None:
    blocks = [ImageBlock(image=asked.picture().encode(), image_mimetype="image/png"), TextBlock(text="What is it?")]
    _model(PLACE.seeing).chat([ChatMessage(role=MessageRole.USER, blocks=blocks)])


@asked.feature("errors")
def _errors() -> None:
    asked.refused(lambda: _model("absent").chat(_user("x")), openai.NotFoundError, "served models")
    asked.refused(lambda: _model().chat(_user("x"), top_p=5), openai.BadRequestError, "top_p")


if __name__ == "__main__":
    asked.tell()
