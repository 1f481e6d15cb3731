"""Chat and text completions differ in how an answer is written down; everything else they share."""

from collections.abc import Sequence
from typing import ClassVar, Protocol

from msgspec import UNSET

from polyfleet.gateway.http.names import CHAT, Names, of_structure
from polyfleet.gateway.http.openai.replies import (
    ChatChoice,
    ChatChunkChoice,
    ChatDelta,
    ChatMessage,
    Choice,
    CompletionChoice,
    call_increment,
    call_reply,
    chat_logprobs,
    completion_logprobs,
)
from polyfleet.wire.answers import Delta, FinishReason, TokenLogprobs
from polyfleet.wire.gathered import GatheredChoice


class Shape(Protocol):
    """How one answer is written. Made for one request; `logprobs` says whether they were asked for."""

    id_prefix: ClassVar[str]
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]
    names: Names  # as this request calls the core's fields

    def chunks(self, delta: Delta) -> list[Choice]:
        """A delta as the choices of chunks, the finish reason in one of its own; none when it says nothing.

        Call in the order of the stream.
        """
        ...

    def whole(self, index: int, choice: GatheredChoice) -> Choice:
        """A whole choice."""
        ...


class ChatShape:
    """`chat.completion` and its chunks."""

    id_prefix: ClassVar[str] = "chatcmpl-"
    whole_object: ClassVar[str] = "chat.completion"
    chunk_object: ClassVar[str] = "chat.completion.chunk"
    names: Names

    def __init__(self, *, logprobs: bool, max_tokens: str = "max_tokens", structure: str = "response_format") -> None:
        """`max_tokens` and `structure` are the names under which the caller gave these."""
        given = {"max_tokens": max_tokens, "logprobs": "top_logprobs", "text": "messages"}
        self.names = {**CHAT, **given, **of_structure(structure)}
        self._logprobs = logprobs
        self._begun: set[int] = set()

    def chunks(self, delta: Delta) -> list[Choice]:
        """As in Shape; the first chunk of each choice names the role."""
        chunks: list[Choice] = []
        first = delta.choice not in self._begun
        if _worth_sending(delta, first, self._logprobs):
            self._begun.add(delta.choice)
            logprobs = chat_logprobs(delta.logprobs) if self._logprobs and delta.logprobs else None
            chunks.append(ChatChunkChoice(delta.choice, _said(delta, first=first), logprobs, None))
        if delta.finish_reason is not None:
            chunks.append(ChatChunkChoice(delta.choice, ChatDelta(), None, delta.finish_reason))
        return chunks

    def whole(self, index: int, choice: GatheredChoice) -> ChatChoice:
        """As in Shape."""
        calls = [call_reply(call) for call in choice.calls.calls]
        message = ChatMessage(
            choice.text or (None if calls else ""),
            reasoning_content=choice.reasoning or UNSET,
            tool_calls=calls or UNSET,
        )
        logprobs = chat_logprobs(choice.logprobs) if self._logprobs else None
        return ChatChoice(index, message, logprobs, choice.finish_reason)


def _said(delta: Delta, *, first: bool) -> ChatDelta:
    calls = [call_increment(call) for call in delta.tool_calls if not call.withdrawn]
    silent = bool(delta.reasoning or calls)
    return ChatDelta(
        role="assistant" if first else UNSET,
        content=delta.text if delta.text or (first and not silent) else UNSET,
        reasoning_content=delta.reasoning or UNSET,
        tool_calls=calls or UNSET,
    )


class CompletionShape:
    """`text_completion`, whole and in chunks alike."""

    id_prefix: ClassVar[str] = "cmpl-"
    whole_object: ClassVar[str] = "text_completion"
    chunk_object: ClassVar[str] = "text_completion"
    names: Names

    def __init__(self, *, logprobs: bool, structure: str = "structured_outputs") -> None:
        """`structure` is the name under which the caller gave it."""
        given = {"text": "prompt", "token_ids": "prompt", "prompt_logprobs": "logprobs"}
        self.names = {**given, **of_structure(structure)}
        self._logprobs = logprobs
        self._begun: set[int] = set()
        self._offsets: dict[int, int] = {}
        self._echoed: set[int] = set()  # choices whose prompt's first token was told

    def chunks(self, delta: Delta) -> list[Choice]:
        """As in Shape."""
        chunks: list[Choice] = []
        if _worth_sending(delta, delta.choice not in self._begun, self._logprobs):
            self._begun.add(delta.choice)
            chunks.append(self._choice(delta.choice, delta.text, delta.prompt_logprobs, delta.logprobs, None))
        if delta.finish_reason is not None:
            chunks.append(CompletionChoice(delta.choice, "", None, delta.finish_reason))
        return chunks

    def whole(self, index: int, choice: GatheredChoice) -> CompletionChoice:
        """As in Shape."""
        return self._choice(index, choice.text, choice.prompt_logprobs, choice.logprobs, choice.finish_reason)

    def _choice(
        self,
        index: int,
        text: str,
        prompt: Sequence[TokenLogprobs],
        answer: Sequence[TokenLogprobs],
        finish_reason: FinishReason | None,
    ) -> CompletionChoice:
        if not self._logprobs:
            return CompletionChoice(index, text, None, finish_reason)
        offset, logprobs = self._offsets.get(index, 0), (*prompt, *answer)
        self._offsets[index] = offset + sum(len(item.text) for item in logprobs)
        shown = completion_logprobs(logprobs, offset, prompt=bool(prompt) and index not in self._echoed)
        if prompt:
            self._echoed.add(index)
        return CompletionChoice(index, text, shown, finish_reason)


def _worth_sending(delta: Delta, first: bool, logprobs: bool) -> bool:
    """Whether a client learns from it: something was said, or, though its text is held back, that the choice began.

    What tells nothing but usage is no beginning.
    """
    said = delta.text or delta.reasoning or delta.tool_calls or (logprobs and (delta.logprobs or delta.prompt_logprobs))
    return bool(said) or (first and (delta.usage is None or bool(delta.token_ids) or delta.finish_reason is not None))
