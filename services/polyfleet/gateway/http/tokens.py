"""`/tokenize` and `/detokenize`, as vLLM has them: what their bodies mean, and their replies."""

from __future__ import annotations

import msgspec

from polyfleet.gateway.http.bodies import NULL, DetokenizeBody, TokenizeBody
from polyfleet.gateway.http.decoding import decode_tools
from polyfleet.gateway.http.openai.translate import chat_messages, template_arguments, turn
from polyfleet.wire.requests import DetokenizeRequest, TokenizeRequest
from polyfleet.wire.tools import MAX_TOOLS


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
    messages, begun = chat_messages(body.messages) if bytes(body.messages) != NULL else ((), False)
    return TokenizeRequest(
        model=body.model or "",
        text=body.prompt,
        messages=messages,
        add_special_tokens=body.add_special_tokens is not False,
        tools=decode_tools(body.tools, MAX_TOOLS),
        template_arguments=template_arguments(body.chat_template_kwargs, None, **turn(body, begun=begun)),
    )


def detokenize_request(body: DetokenizeBody) -> DetokenizeRequest:
    """What is to be spelled."""
    return DetokenizeRequest(body.model or "", tuple(body.tokens))
