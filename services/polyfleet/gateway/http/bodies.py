"""Request bodies of the OpenAI endpoints: every field they define, and our extensions; vLLM's /tokenize too. Unknown
fields are refused, unless they are null.

Three kinds of fields: those that work; those that are accepted and change nothing (they don't change the result, or
only speak of OpenAI's own service); and those that would change the result but are not supported, which
`refuse_unsupported` finds unless their value asks for nothing. docs/api.md lists all three.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

# What isn't looked into stays JSON: made into objects, 4 MB of `[[],[],…` would hold the event loop for half a second.
Ignored = msgspec.Raw
Unsupported = msgspec.Raw
TokenIds = list[int]
Messages = msgspec.Raw  # list[MessageBody]: `decode_messages`
Tools = msgspec.Raw  # list of objects: `decode_tools`
Inputs = msgspec.Raw  # a text, token ids, or several of either: `decode_inputs`
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]  # to think with
NULL = b"null"
NOTHING = msgspec.Raw(NULL)

# The unsupported fields, each with the values (None aside) with which it asks for nothing.
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "background": (False,),
    "container": (),
    "context_management": ([], {}),
    "conversation": (),
    "dimensions": (),
    "function_call": ("auto", "none"),  # with functions refused, neither can have an effect
    "functions": ([],),
    "images": ([],),
    "modalities": (["text"], []),
    "max_tool_calls": (),
    "mcp_servers": ([],),
    "moderation": (),
    "previous_response_id": (),
    "suffix": ("",),
    "verbosity": ("medium",),
    "thread": (),
    "top_logprobs": (0,),
    "web_search_options": (),
}


class Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all bodies."""


class StreamOptions(Strict, frozen=True, kw_only=True):
    """`stream_options`; obfuscation is padding against eavesdroppers that we leave to TLS.

    `continuous_usage_stats` is an extension: with usage in a chunk of its own, each other chunk tells it too, so far.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Ignored = NOTHING


class GenerateBody(Strict, frozen=True, kw_only=True):
    """What chat and text completions have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    n: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    # Extensions.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    stop_token_ids: TokenIds | None = None
    priority: int | None = None
    structured_outputs: msgspec.Raw = NOTHING  # this and the next four: `response_format.read`
    guided_json: msgspec.Raw = NOTHING
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    user: Ignored = NOTHING  # a session, where it is a text


class ImageUrl(msgspec.Struct, frozen=True, kw_only=True):
    """An image as a data URL; how closely it is to be looked at (`detail`) is the model's own."""

    url: str


class ContentPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a message's content: a text, a refusal or an image. Other types' fields are not looked at."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: ImageUrl | str | None = None


class FunctionCall(msgspec.Struct, frozen=True, kw_only=True):
    """What a call calls. Arguments are JSON as text, or, from some clients, as it is."""

    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCallBody(msgspec.Struct, frozen=True, kw_only=True):
    """A call that comes back; other fields (`index`) say nothing more."""

    function: FunctionCall | None = None
    id: str = ""
    type: str | None = None


class MessageBody(Strict, frozen=True, kw_only=True):
    """One turn, also as an answer of this or another server comes back with it.

    `function_call`, `audio` and `images` belong to features that are not supported. A refusal is what was said where
    there is no content. With `prefix` the answer goes on from it.
    """

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCallBody] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    # Extensions.
    prefix: bool | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    # Without effect.
    annotations: Ignored = NOTHING
    cache_control: Ignored = NOTHING
    citations: Ignored = NOTHING
    id: Ignored = NOTHING
    metadata: Ignored = NOTHING
    parsed: Ignored = NOTHING  # the content, as openai-python reads it
    reasoning_details: Ignored = NOTHING
    type: Ignored = NOTHING  # message, or text
    thinking_blocks: Ignored = NOTHING
    provider_specific_fields: Ignored = NOTHING
    # Not supported.
    audio: Unsupported = NOTHING
    function_call: Unsupported = NOTHING
    images: Unsupported = NOTHING


class ChatBody(GenerateBody, frozen=True, kw_only=True):
    """Body of `POST /v1/chat/completions`."""

    messages: Messages
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: Tools = NOTHING
    tool_choice: msgspec.Raw = NOTHING  # `tool_choice.read`
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    response_format: msgspec.Raw = NOTHING  # `response_format.read`
    # Extensions.
    add_generation_prompt: bool | None = None
    chat_template_kwargs: msgspec.Raw = NOTHING  # an object
    continue_final_message: bool | None = None
    # Without effect.
    metadata: Ignored = NOTHING
    prediction: Ignored = NOTHING
    prompt_cache_key: Ignored = NOTHING
    prompt_cache_options: Ignored = NOTHING
    prompt_cache_retention: Ignored = NOTHING
    safety_identifier: Ignored = NOTHING
    service_tier: Ignored = NOTHING
    store: Ignored = NOTHING
    # Not supported.
    audio: Unsupported = NOTHING
    function_call: Unsupported = NOTHING
    functions: Unsupported = NOTHING
    modalities: Unsupported = NOTHING
    moderation: Unsupported = NOTHING
    verbosity: Unsupported = NOTHING
    web_search_options: Unsupported = NOTHING


class CompletionBody(GenerateBody, frozen=True, kw_only=True):
    """Body of `POST /v1/completions`. The prompt is a text, token ids, or several of either."""

    prompt: Inputs
    logprobs: int | None = None
    best_of: int | None = None  # supported where it equals n
    echo: bool | None = None
    # Not supported.
    suffix: Unsupported = NOTHING


class TokenizeBody(Strict, frozen=True, kw_only=True):
    """Body of `POST /tokenize`: a prompt, or a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages = NOTHING
    tools: Tools = NOTHING
    add_generation_prompt: bool | None = None
    chat_template_kwargs: msgspec.Raw = NOTHING
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Strict, frozen=True, kw_only=True):
    """Body of `POST /detokenize`."""

    tokens: TokenIds
    model: str | None = None


class EmbeddingsBody(Strict, frozen=True, kw_only=True):
    """Body of `POST /v1/embeddings`. `pooling` and `normalize` are extensions."""

    input: Inputs
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    pooling: Literal["mean", "last", "cls"] | None = None
    normalize: bool | None = None
    user: Ignored = NOTHING
    dimensions: int | None = None
