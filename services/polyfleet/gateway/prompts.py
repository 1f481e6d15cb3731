"""From the prompt of a request to the ids that its model computes."""

import asyncio
from collections.abc import Sequence

from polyfleet.gateway.api import Message
from polyfleet.gateway.models import ServedModel
from polyfleet.gateway.validation import check_ids
from polyfleet.text.model_text import ModelText
from polyfleet.wire.limits import FieldError

LONG_CHARACTERS = 20_000  # beyond, tokenising would hold up the other requests: it goes to a thread
MESSAGE_CHARACTERS = 64  # what one message weighs beside its content


async def encode_text(served: ServedModel, field: str, text: str, add_special_tokens: bool = True) -> tuple[int, ...]:
    """Ids of raw text. Raises FieldError on `field`."""
    model_text = _text_of(served, field)
    try:
        if len(text) > LONG_CHARACTERS:
            return tuple(await asyncio.to_thread(model_text.encode, text, add_special_tokens))
        return tuple(model_text.encode(text, add_special_tokens))
    except FieldError as error:
        raise FieldError(field, error.problem) from None


async def encode_chat(served: ServedModel, messages: Sequence[Message]) -> tuple[int, ...]:
    """Ids of a chat, rendered with the model's template. Raises FieldError on `messages`."""
    model_text = _text_of(served, "messages")
    weight = sum(len(each.content) + MESSAGE_CHARACTERS for each in messages)
    if weight > LONG_CHARACTERS:
        return tuple(await asyncio.to_thread(_encode_chat, model_text, messages))
    return tuple(_encode_chat(model_text, messages))


async def encode_prompt(
    served: ServedModel, text: str | None, messages: Sequence[Message], token_ids: tuple[int, ...]
) -> tuple[int, ...]:
    """Ids of the one of the three that is set. Raises FieldError on it."""
    if text is not None:
        return await encode_text(served, "text", text)
    if messages:
        return await encode_chat(served, messages)
    check_ids("token_ids", token_ids, served.model)
    return token_ids


def _encode_chat(model_text: ModelText, messages: Sequence[Message]) -> list[int]:
    rendered = model_text.render_chat(
        [{"role": each.role, "content": each.content} | ({"name": each.name} if each.name else {}) for each in messages]
    )
    try:
        return model_text.encode(rendered, add_special_tokens=False)
    except FieldError as error:
        raise FieldError("messages", error.problem) from None


def _text_of(served: ServedModel, field: str) -> ModelText:
    if served.text is None:
        raise FieldError(field, f"model {served.model.name} has no tokenizer; send token_ids")
    return served.text
