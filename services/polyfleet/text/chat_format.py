"""What a chat template does with messages, found by rendering some: no model file tells."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polyfleet.text.chat_template import ChatTemplate
from polyfleet.text.errors import TextAssetsError
from polyfleet.wire.limits import FieldError

MARK = "80719254361"  # a content that no template holds, and that stays as it is in whatever case it is put
CALL_ID, USUAL_ID = "abcdefghi", "call_0123456789abcdef"  # as Mistral's templates want them, and as others write them
ARGUMENTS: tuple[Any, ...] = ({"a": MARK}, f'{{"a": "{MARK}"}}')  # of a call, as an object and as text
PROBE = {  # a tool that no template knows
    "type": "function",
    "function": {"name": MARK, "description": "a", "parameters": {"type": "object", "properties": {}}},
}
THOUGHTS = ("reasoning_content", "thinking")  # of a message: where templates look for what the assistant thought
LAYOUTS: Mapping[str, tuple[tuple[str, ...], ...]] = {  # by role: conversations in which a message of it may stand
    "user": (("user",), ("system", "user")),
    "system": (("system", "user"),),
    "assistant": (("user", "assistant", "user"), ("user", "assistant")),
    "tool": (("user", "assistant", "tool"), ("user", "assistant", "tool", "assistant")),
}


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """`parts`: contents have to be lists of parts. `left_out`: roles whose messages it drops without a word.

    `behind_answer`: what it writes behind an assistant's content. `tools`: it tells the model of tools. `call_texts`:
    it takes the arguments of calls as JSON text, not as objects. `no_content`: what it takes as a content of nothing
    beside calls. `thoughts`: the key of a message's thoughts. `short_ids`: it refuses ids of calls of other than nine
    letters and digits. `system_tools`: a system's message has the definitions, as text under the key `tools`.
    """

    parts: bool
    left_out: frozenset[str] = frozenset()
    behind_answer: str = ""
    tools: bool = False
    call_texts: bool = False
    no_content: str | None = None
    thoughts: str = THOUGHTS[0]
    short_ids: bool = False
    system_tools: bool = False

    def content(self, content: str | Sequence[str]) -> Any:
        """A content, one text or several, in the form that the template wants; texts are joined by line breaks."""
        if self.parts:
            return [{"type": "text", "text": text} for text in ([content] if isinstance(content, str) else content)]
        return content if isinstance(content, str) else "\n".join(content)


def find_format(template: ChatTemplate) -> ChatFormat:
    """The template's format. Raises TextAssetsError when what a user says reaches the prompt in no form."""
    parts = _wants_parts(template)
    no_content, called = _called(template, parts)
    objects, texts = (MARK in each for each in called)
    left_out = {role for role in LAYOUTS if role != "user" and _leaves_out(template, role, parts)}
    if objects or texts:
        left_out.discard("tool")
    kept = (each for each in THOUGHTS if MARK in (_with_call(template, parts, {}, no_content, **{each: MARK}) or ""))
    return ChatFormat(
        parts,
        frozenset(left_out),
        _behind_answer(template, parts),
        tools=MARK in (_render(template, _messages(("user",), "user", parts, "a"), True, tools=[PROBE]) or ""),
        call_texts=texts and not objects,
        no_content=no_content,
        thoughts=next(kept, THOUGHTS[0]),
        system_tools=MARK in (_render(template, _system_with_tools(parts), True) or ""),
        short_ids=any(called)
        and not any(_with_call(template, parts, each, no_content, USUAL_ID) for each in ARGUMENTS),
    )


def _wants_parts(template: ChatTemplate) -> bool:
    """Whether a user's content has to be a list of parts. Raises TextAssetsError where it is left out either way."""
    taken = False
    for parts in (False, True):
        texts = _rendered(template, "user", parts)
        if any(_reaches(text) for text in texts):
            return parts
        taken = taken or any(text is not None for text in texts)
    if taken:
        raise TextAssetsError(
            "The model's chat template leaves out what the user says, be it given as text or as a list of parts."
        )
    return False  # it refuses everything here: let it tell each caller why


def _called(template: ChatTemplate, parts: bool) -> tuple[str | None, list[str]]:
    """What stands as content beside a call of a tool, and the prompt by each of ARGUMENTS; "" where it is refused."""
    for no_content in (None, ""):
        called = [_with_call(template, parts, arguments, no_content) or "" for arguments in ARGUMENTS]
        if any(called):
            return no_content, called
    return None, ["" for _ in ARGUMENTS]


def _rendered(template: ChatTemplate, role: str, parts: bool) -> list[str | None]:
    """Each layout of the role, MARK being the role's last content; None where the template refuses it."""
    return [_render(template, _messages(layout, role, parts), True) for layout in LAYOUTS[role]]


def _messages(layout: Sequence[str], role: str, parts: bool, content: str = MARK) -> list[dict[str, Any]]:
    form = ChatFormat(parts)
    marked = len(layout) - 1 - layout[::-1].index(role)
    return [{"role": each, "content": form.content(content if i == marked else "a")} for i, each in enumerate(layout)]


def _system_with_tools(parts: bool) -> list[dict[str, Any]]:
    system, user = _messages(LAYOUTS["system"][0], "system", parts, "a")
    return [system | {"tools": MARK}, user]


def _with_call(
    template: ChatTemplate, parts: bool, arguments: Any, content: str | None, call_id: str = CALL_ID, **more: str
) -> str | None:
    """A chat in which the assistant calls a tool with these arguments; `more` stands in its message."""
    user, assistant, tool = _messages(LAYOUTS["tool"][0], "tool", parts, "a")
    call = {"id": call_id, "type": "function", "function": {"name": "a", "arguments": arguments}}
    assistant |= {"content": content, "tool_calls": [call], **more}
    return _render(template, [user, assistant, tool | {"tool_call_id": call_id}], True)


def _render(
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    add_generation_prompt: bool,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> str | None:
    try:
        return template.render(messages, add_generation_prompt, tools)
    except FieldError:
        return None


def _reaches(text: str | None) -> bool:
    """Whether MARK is in the prompt, and not as Python or JSON spell a list of parts."""
    return text is not None and MARK in text and "'type'" not in text and '"type": "text"' not in text


def _leaves_out(template: ChatTemplate, role: str, parts: bool) -> bool:
    found = [text for text in _rendered(template, role, parts) if text is not None]
    return bool(found) and not any(MARK in text for text in found)


def _behind_answer(template: ChatTemplate, parts: bool) -> str:
    """Behind the last message if there is anything, else before the next user's: some end only one of them."""
    for layout in (("user", "assistant"), ("user", "assistant", "user")):
        text = _render(template, _messages(layout, "assistant", parts), False)
        behind = text.rpartition(MARK)[2].lstrip() if text and MARK in text else ""
        if behind:
            return behind
    return ""
