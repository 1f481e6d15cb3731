"""Bodies of `/tokenize` and `/detokenize`, and their replies, as vLLM has them."""

from __future__ import annotations

import msgspec

from polyfleet.gateway.http.bodies import NOTHING, NULL, Messages, Strict, TokenIds, Tools
from polyfleet.gateway.http.decoding import decode_tools
from polyfleet.gateway.http.openai.translate import chat_messages, json_text
from polyfleet.wire.requests import DetokenizeRequest, TokenizeRequest
from polyfleet.wire.tools import MAX_TOOLS


class TokenizeBody(Strict, frozen=True, kw_only=True):
    """Body of `POST /tokenize`: a prompt, or a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages = NOTHING
    tools: Tools = NOTHING
    chat_template_kwargs: msgspec.Raw = NOTHING
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Strict, frozen=True, kw_only=True):
    """Body of `POST /detokenize`."""

    tokens: TokenIds
    model: str | None = None


class TokenizeReply(msgspec.Struct, omit_defaults=True):
    """Ids, and how they are spelled where that was asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeReply(msgspec.Struct):
    """The text of the ids, special tokens as they are spelled."""

    prompt: str


def tokenize_request(body: TokenizeBody) -> TokenizeRequest:
    """What is to be tokenized. Raises FieldError."""
    return TokenizeRequest(
        model=body.model or "",
        text=body.prompt,
        messages=chat_messages(body.messages) if bytes(body.messages) != NULL else (),
        add_special_tokens=body.add_special_tokens is not False,
        tools=decode_tools(body.tools, MAX_TOOLS),
        template_arguments=json_text(body.chat_template_kwargs),
    )


def detokenize_request(body: DetokenizeBody) -> DetokenizeRequest:
    """What is to be spelled."""
    return DetokenizeRequest(body.model or "", tuple(body.tokens))
