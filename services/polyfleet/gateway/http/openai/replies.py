"""Response bodies of the OpenAI endpoints. UNSET leaves a field out, None writes null."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from polyfleet.gateway.pace import in_pieces
from polyfleet.wire.answers import Embeddings, FinishReason, Model, TokenLogprobs, Usage, Vector
from polyfleet.wire.tools import ToolCall, ToolCallDelta


class PromptTokensDetails(msgspec.Struct):
    """The part of the prompt that was read from the KV cache."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct):
    """The part of the answer that thoughts took."""

    reasoning_tokens: int


class UsageReply(msgspec.Struct):
    """Tokens of all choices together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class ChatToken(msgspec.Struct):
    """A token with its log probability; `bytes` are its own, also where it is a part of a character."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[ChatToken] | UnsetType = UNSET


class ChatLogprobs(msgspec.Struct):
    """Logprobs of a chat choice."""

    content: list[ChatToken]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct):
    """Logprobs of a text choice: parallel lists. Offsets count characters, each token by its own text, from 0.

    null: nothing stands before the first token of an echoed prompt.
    A token that is no whole characters is spelt as its bytes, as OpenAI does it: `bytes:\\xe6\\x97`.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class FunctionReply(msgspec.Struct):
    """What a call calls, or an increment of it."""

    arguments: str
    name: str | UnsetType = UNSET


class ToolCallReply(msgspec.Struct):
    """A call, or (with `index`) an increment of one, whose first has its id, type and name."""

    function: FunctionReply
    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class ChatMessage(msgspec.Struct):
    """The answer of one choice; `content` is null where it only calls tools. `reasoning_content` is an extension."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallReply] | UnsetType = UNSET


class ChatDelta(msgspec.Struct):
    """What a chunk adds to the answer."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallReply] | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    """One whole choice."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class ChatChunkChoice(msgspec.Struct):
    """One choice's part of a chunk."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class CompletionChoice(msgspec.Struct):
    """A text choice, whole or as part of a chunk."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None


Choice = ChatChoice | ChatChunkChoice | CompletionChoice


class Reply(msgspec.Struct):
    """Body of a completion, or one of its chunks."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: UsageReply | UnsetType | None = UNSET


class ModelReply(msgspec.Struct):
    """A model; the fields from `context_length` to `parent` are extensions."""

    id: str
    created: int
    context_length: int
    ready_workers: int
    reason: str
    accelerators: list[str]
    sampling_defaults: dict[str, float]
    embeds_only: bool
    cross_encoder: bool
    ids_only: bool
    parent: str | UnsetType = UNSET  # of an adapter
    object: Literal["model"] = "model"
    owned_by: Literal["polyfleet"] = "polyfleet"


class ModelList(msgspec.Struct):
    """Body of `GET /v1/models`."""

    data: list[ModelReply]
    object: Literal["list"] = "list"


class EmbeddingReply(msgspec.Struct):
    """One vector: floats, or base64 of little-endian 32-bit floats."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingsUsage(msgspec.Struct):
    """Tokens of all inputs together."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsReply(msgspec.Struct):
    """Body of `POST /v1/embeddings`."""

    data: list[msgspec.Raw]  # each an EmbeddingReply
    model: str
    usage: EmbeddingsUsage
    object: Literal["list"] = "list"


def usage_reply(usage: Usage) -> UsageReply:
    """OpenAI's spelling of Usage."""
    details = PromptTokensDetails(usage.cached_tokens), CompletionTokensDetails(usage.reasoning_tokens)
    return UsageReply(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, *details)


def call_reply(call: ToolCall) -> ToolCallReply:
    """A whole call."""
    return ToolCallReply(FunctionReply(call.arguments, call.name), id=call.id, type="function")


def call_increment(delta: ToolCallDelta) -> ToolCallReply:
    """An increment of a call."""
    if not delta.id:
        return ToolCallReply(FunctionReply(delta.arguments), delta.index)
    return ToolCallReply(FunctionReply(delta.arguments, delta.name), delta.index, delta.id, "function")


def chat_logprobs(logprobs: Sequence[TokenLogprobs]) -> ChatLogprobs:
    """Logprobs as chat completions show them."""
    return ChatLogprobs([_chat_token(item, [_chat_token(top) for top in item.top]) for item in logprobs])


def completion_logprobs(logprobs: Sequence[TokenLogprobs], offset: int, *, prompt: bool = False) -> CompletionLogprobs:
    """Logprobs as text completions show them; `offset` is that of the first token. `prompt`: it is a prompt's first.

    `top_logprobs` also names the chosen token, so it may have one entry more than was asked for.
    """
    reply = CompletionLogprobs([], [], [], [])
    for item in logprobs:
        reply.tokens.append(_spelt(item))
        reply.token_logprobs.append(item.logprob)
        alternatives: dict[str, float] = {}
        for token in (*item.top, item):
            alternatives.setdefault(_spelt(token), token.logprob)  # of equal ones the likeliest
        reply.top_logprobs.append(alternatives)
        reply.text_offset.append(offset)
        offset += len(item.text)
    if prompt:
        reply.token_logprobs[0] = reply.top_logprobs[0] = None
    return reply


def _spelt(item: TokenLogprobs) -> str:
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in item.partial) if item.partial else item.text


def model_reply(model: Model) -> ModelReply:
    """OpenAI's spelling of Model."""
    return ModelReply(
        id=model.name,
        created=model.created_unix_seconds,
        context_length=model.context_length,
        ready_workers=model.ready_workers,
        reason=model.reason,
        accelerators=list(model.accelerators),
        sampling_defaults=dict(model.sampling_defaults),
        embeds_only=model.embeds_only,
        cross_encoder=model.cross_encoder,
        ids_only=model.ids_only,
        parent=model.parent or UNSET,
    )


async def embeddings_reply(result: Embeddings, model: str, encoding: str) -> EmbeddingsReply:
    """Vectors in `encoding`, float or base64."""
    spell = _base64 if encoding == "base64" else list

    def written(numbered: tuple[int, Vector]) -> msgspec.Raw:
        return msgspec.Raw(msgspec.json.encode(EmbeddingReply(numbered[0], spell(numbered[1]))))

    tokens = result.usage.prompt_tokens
    data = await in_pieces(written, list(enumerate(result.vectors)))
    return EmbeddingsReply(data, model, EmbeddingsUsage(tokens, tokens))


def _chat_token(item: TokenLogprobs, top: list[ChatToken] | UnsetType = UNSET) -> ChatToken:
    return ChatToken(item.text, item.logprob, list(item.partial or item.text.encode()), top)


def _base64(vector: tuple[float, ...]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")
