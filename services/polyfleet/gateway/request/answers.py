"""How a request's answer is taken apart: as its model writes thoughts and calls, and as far as calls were asked for."""

from polyfleet.gateway.fleet.models import ServedModel
from polyfleet.text.answer.formats import FORMATS, ToolFormat
from polyfleet.text.answer.parser import AnswerParser
from polyfleet.wire.requests import GenerateRequest
from polyfleet.wire.tools import read_tools


def make_parser(
    request: GenerateRequest, served: ServedModel, *, thinking: bool, tool_parser: str = "auto"
) -> AnswerParser | None:
    """A parser of one choice of a chat; None where there is nothing to tell apart.

    `thinking`: the prompt ends within thoughts. `tool_parser` is a name of FORMATS, auto or none.
    """
    if not request.messages or served.text is None:
        return None
    form: ToolFormat | None = None
    if request.chat.tools and tool_parser != "none":
        form = served.text.tool_format if tool_parser == "auto" else FORMATS[tool_parser]
    tags = served.text.reasoning_tags
    if form is None and tags is None:
        return None
    tools = read_tools(request.tools, request.tool_names) if form else ()
    return AnswerParser(form, tools, tags, thinking=thinking, most_calls=0 if request.parallel_tool_calls else 1)
