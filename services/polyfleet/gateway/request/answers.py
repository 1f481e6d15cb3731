"""What a request's answer may be, and how it is taken apart: as its model writes thoughts and calls."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from polyfleet.gateway.errors import InvalidArgument
from polyfleet.gateway.prompts.prompts import Prompt
from polyfleet.gateway.request.models import ServedModel
from polyfleet.text.answer.channels import ChannelParser
from polyfleet.text.answer.formats import FORMATS, HARMONY, ToolFormat
from polyfleet.text.answer.parser import AnswerParser
from polyfleet.text.grammar import Calls
from polyfleet.wire.limits import FieldError
from polyfleet.wire.requests import GenerateRequest
from polyfleet.wire.tools import read_tools


def make_parser(
    request: GenerateRequest, served: ServedModel, *, thinking: bool, tool_parser: str = "auto"
) -> AnswerParser | None:
    """A parser of one choice of a chat; None where there is nothing to tell apart.

    `thinking`: the prompt ended within thoughts. `tool_parser` is a name of FORMATS, auto or none.
    """
    if not request.messages or served.text is None:
        return None
    form, tags = _format(request, served, tool_parser), served.text.reasoning_tags
    around = served.text.response_tags
    tools = read_tools(request.tools, request.tool_names) if form else ()
    most_calls = 0 if request.parallel_tool_calls and not _named(request) else 1
    if _in_channels(request, served, form):
        return ChannelParser(tools, bare=bool(form and form.bare), most_calls=most_calls)
    if form is None and tags is None and around is None:
        return None
    return AnswerParser(form, tools, tags, response_tags=around, thinking=thinking, most_calls=most_calls)


async def make_grammar(
    request: GenerateRequest, served: ServedModel, prompt: Prompt, seconds: float, tool_parser: str
) -> str:
    """The grammar that the answer must keep to; empty where it is free. Raises FieldError, and as Prompts does."""
    calls = _calls(request, served, tool_parser)
    if request.structure is None and calls is None:
        return ""
    if served.prompts is None or served.text is None:
        field = "structure" if request.structure else "tools"
        raise FieldError(field, f"model {served.model.name} has no tokenizer to keep an answer to it")
    tags = served.text.reasoning_tags
    closing = tags.closing if prompt.thinking and tags else ""
    form = _format(request, served, tool_parser)
    channels = _in_channels(request, served, form)
    marks = (closing, *(HARMONY.markers if channels else form.markers if form else ()))
    special = served.text.specials(marks)
    return await served.prompts.grammar(request.structure, calls, closing, special, seconds, channels=channels)


@contextmanager
def grammar_named(request: GenerateRequest, grammar: str) -> Iterator[None]:
    """What a worker finds wrong with a grammar, by its model's tokens, is told of the field that asks for it."""
    try:
        yield
    except InvalidArgument as error:
        if not grammar or error.violations:
            raise
        field = "structure" if request.structure else "tools"
        raise InvalidArgument.of(FieldError(field, error.message.rstrip("."))) from None


def _calls(request: GenerateRequest, served: ServedModel, tool_parser: str) -> Calls | None:
    """What the grammar has to say of calls: where one is required, a tool is strict, or beside a structure."""
    form, required = _format(request, served, tool_parser), request.tool_choice == "required"
    if form is None or served.text is None:
        return None
    calls = Calls(request.tools, request.tool_names, required, request.parallel_tool_calls and not _named(request))
    if required or request.structure is not None:
        return calls
    if not form.spellings or not any(tool.strict for tool in read_tools(request.tools, request.tool_names)):
        return None
    return replace(calls, opening=form.openings[0], closing=form.closing, spellings=form.spellings)


def _in_channels(request: GenerateRequest, served: ServedModel, form: ToolFormat | None) -> bool:
    """Whether the answer is messages in channels."""
    harmony = served.text is not None and served.text.tool_format is HARMONY
    return bool(request.messages) and harmony and (form is None or form.name == HARMONY.name)


def _format(request: GenerateRequest, served: ServedModel, tool_parser: str) -> ToolFormat | None:
    """How calls are written; None where none are looked for. Those that a grammar asks for have no marks."""
    if not request.chat.tools or served.text is None:
        return None
    required = request.tool_choice == "required"
    if tool_parser == "none" and not required:
        return None
    form = FORMATS.get(tool_parser, served.text.tool_format)
    return replace(form, bare=True) if required or request.structure is not None else form


def _named(request: GenerateRequest) -> bool:
    """Whether one tool alone may be called, and has to be."""
    return request.tool_choice == "required" and len(request.tool_names) == 1
