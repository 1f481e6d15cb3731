"""From a chat to its prompt as text, by the template of its model."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any

from polyfleet.text.answer.parser import find_reasoning_tags
from polyfleet.text.chat_format import THOUGHTS, ChatFormat, find_format
from polyfleet.text.chat_template import ChatTemplate
from polyfleet.text.errors import TextAssetsError, check_unicode
from polyfleet.text.plain_tools import phi_chat, plain_chat
from polyfleet.text.shield import Shield
from polyfleet.wire.images import Image
from polyfleet.wire.json_text import read_object
from polyfleet.wire.limits import FieldError
from polyfleet.wire.requests import Message
from polyfleet.wire.tools import ToolCall

Hide = Callable[[str], str]
_SHORT_ID = re.compile(r"[0-9A-Za-z]{9}")
RESERVED = ("messages", "tools")  # of a template's variables
CONTINUE = "continue_final_message"  # among them: the answer goes on where the last message ends


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt with what contents spell still hidden; `thinking`: it ends within the model's thoughts."""

    text: str
    thinking: bool


class ChatRenderer:
    """The model's templates: `sources` are the one for chats, and the one for chats with tools where it is another.

    Compiled and tried when they are first asked for. Without any, every chat is refused.
    """

    def __init__(self, sources: Sequence[str], special: Mapping[str, str], shield: Shield) -> None:
        self._sources = [source for source in sources if source]
        self._special = special
        self._shield = shield

    def prepare(self) -> None:
        """Compile and try what there is. Raises TextAssetsError."""
        if self._sources:
            self._chat  # noqa: B018 - made when first asked for
            self._tool_chat  # noqa: B018

    @property
    def behind_answer(self) -> str:
        """What the template writes behind an answer."""
        return self._chat[1].behind_answer

    @cached_property
    def _chat(self) -> tuple[ChatTemplate, ChatFormat]:
        return self._compile(self._sources[0])

    @cached_property
    def _tool_chat(self) -> tuple[ChatTemplate, ChatFormat]:
        return self._compile(self._sources[-1]) if len(self._sources) > 1 else self._chat

    def _compile(self, source: str) -> tuple[ChatTemplate, ChatFormat]:
        template = ChatTemplate(source, self._special, self._shield)
        return template, find_format(template)

    def render(self, messages: Sequence[Message], tools: Sequence[str], arguments: str, hide: Hide) -> Rendered:
        """The prompt; `hide` keeps what contents spell apart from the template's own text. Raises FieldError.

        `tools` and `arguments` are JSON, as in GenerateRequest.
        """
        if not self._sources:
            raise FieldError("messages", "this model has no chat template; send text instead")
        try:
            template, form = self._tool_chat if tools else self._chat
        except TextAssetsError as error:
            raise FieldError("messages", str(error).rstrip(".")) from None
        last = messages[-1]
        in_system = tools if form.system_tools and not form.tools else ()
        if not form.tools and (tools or any(message.tool_calls for message in messages)):
            messages = phi_chat(messages) if form.system_tools else plain_chat(messages, tools, form.left_out)
            tools = ()
        values = [_message(message, f"messages[{index}]", form, hide) for index, message in enumerate(messages)]
        if in_system:
            functions = [read_object(text, f"tools[{i}]")["function"] for i, text in enumerate(in_system)]
            system = [] if messages[0].role == "system" else [{"role": "system", "content": form.content("")}]
            values = [*system, *values]
            values[0]["tools"] = hide(json.dumps(functions, ensure_ascii=False))
        definitions = [_hidden(read_object(text, f"tools[{i}]"), f"tools[{i}]", hide) for i, text in enumerate(tools)]
        variables = self._arguments(arguments, hide)
        if variables.pop(CONTINUE, False):
            variables["add_generation_prompt"] = False
            text = template.render(values, tools=definitions or None, **variables)
            return Rendered(_up_to(text, last, values[-1]["content"]), False)
        text = template.render(values, tools=definitions or None, **variables)
        tags = find_reasoning_tags(self._sources[0])
        return Rendered(text, tags is not None and text.rstrip().endswith(tags.opening))

    def _arguments(self, arguments: str, hide: Hide) -> dict[str, Any]:
        given = read_object(arguments, "template_arguments") if arguments else {}
        for name in RESERVED:
            if name in given:
                raise FieldError(f"template_arguments.{name}", "is what the request itself says; leave it out")
        return {name: _hidden(value, "template_arguments", hide) for name, value in given.items()}


def _up_to(text: str, last: Message, content: Any) -> str:
    """A rendered chat up to where its last message's content, as the template had it, ends. Raises FieldError."""
    own = content if isinstance(content, str) else content[-1].get("text", "") if content else ""
    if last.role != "assistant" or last.tool_calls or not own.strip():
        raise FieldError("messages", "must end with a text of the assistant's for an answer that goes on from it")
    start = text.rfind(own.strip())
    if start < 0:
        raise FieldError(
            "messages", "end with a text that the model's chat template changes, so no answer goes on from it"
        )
    return text[: start + len(own.strip())]


def _message(message: Message, path: str, form: ChatFormat, hide: Hide) -> dict[str, Any]:
    """A message as `transformers` would be given it."""
    if message.role in form.left_out and any(text.strip() for text in message.texts):
        raise FieldError(f"{path}.role", f"the model's chat template leaves out messages of role {message.role}")
    content = form.no_content if message.content is None else _content(message, path, form, hide)
    value = {"role": message.role, "content": content}
    more = {"name": message.name, "tool_call_id": _id(message.tool_call_id, short=form.short_ids)}
    if form.thoughts == THOUGHTS[0] or not (message.tool_calls and content):  # others refuse both beside calls
        more[form.thoughts] = message.reasoning
    value |= {key: _hidden(text, path, hide) for key, text in more.items() if text}
    if message.tool_calls:
        value["tool_calls"] = [
            _hidden(_call(call, form), f"{path}.tool_calls[{index}]", hide)
            for index, call in enumerate(message.tool_calls)
        ]
    return value


def _content(message: Message, path: str, form: ChatFormat, hide: Hide) -> Any:
    """In the form that the template wants; images need parts."""
    if message.images:
        shown = [None if isinstance(part, Image) else _hidden(part, path, hide) for part in message.parts]
        return [{"type": "image"} if text is None else {"type": "text", "text": text} for text in shown]
    plain = [_hidden(text, path, hide) for text in message.texts]
    return form.content(plain[0] if isinstance(message.content, str) else plain)


def _id(call_id: str, *, short: bool) -> str:
    """A call's id, as other models or clients made it; nine letters and digits where the template takes no other."""
    if not call_id or not short or _SHORT_ID.fullmatch(call_id):
        return call_id
    return blake2b(call_id.encode("utf-8", "replace"), digest_size=8).hexdigest()[:9]


def _call(call: ToolCall, form: ChatFormat) -> dict[str, Any]:
    """A call with its arguments as an object, unless the template takes text, or they are none."""
    arguments: Any = call.arguments
    if not form.call_texts:
        try:
            arguments = read_object(arguments or "{}", "")
        except FieldError:
            arguments = call.arguments
    call_id = _id(call.id, short=form.short_ids)
    return {"id": call_id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _hidden(value: Any, path: str, hide: Hide) -> Any:
    """The value with all its texts hidden. Raises FieldError."""
    if isinstance(value, str):
        check_unicode(path, value)
        return hide(value)
    if isinstance(value, dict):
        return {_hidden(key, path, hide): _hidden(each, path, hide) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_hidden(each, path, hide) for each in value]
    return value
