"""The prompt of a request, whichever form it came in, as ids of its model."""

from collections.abc import Awaitable, Mapping
from types import MappingProxyType

from polyfleet.gateway.errors import FailedPrecondition
from polyfleet.gateway.prompts.prompts import Prompt, Prompts
from polyfleet.gateway.request.models import ServedModel
from polyfleet.gateway.request.validation import check_fit, check_ids
from polyfleet.text.errors import TextAssetsError
from polyfleet.text.images import SEES_NONE
from polyfleet.wire.limits import FieldError
from polyfleet.wire.requests import Chat, EmbedInput, GenerateRequest


async def encode_text(
    served: ServedModel,
    field: str,
    text: str,
    seconds: float,
    *,
    add_special_tokens: bool = True,
    pieces: bool = False,
) -> Prompt:
    """Of raw text, within so many seconds. Raises FieldError on `field`, and the ApiErrors of Prompts."""
    prompts, room = _prompts_of(served, field), served.model.context_length
    work = prompts.of_text(text, room, seconds, add_special_tokens=add_special_tokens, pieces=pieces)
    return await _made(field, work, served)


async def encode_document(
    served: ServedModel, field: str, document: str, seconds: float, *, max_text: int = 0, query: str = ""
) -> Prompt:
    """Of a document, cut where the model's context or `max_text` ends, with a query where there is one.

    Raises as `encode_text`, on `query` where that leaves no room.
    """
    work = _prompts_of(served, field).of_document(
        document, served.model.context_length, seconds, max_text=max_text, query=query
    )
    return await _made("", work, served, {"document": field})


async def encode_chat(served: ServedModel, chat: Chat, seconds: float, *, pieces: bool = False) -> Prompt:
    """Of a chat, rendered with the model's template. Raises as `encode_text`, on `messages`."""
    prompts, room = _prompts_of(served, "messages"), served.model.context_length
    if chat.images and served.text is not None and not served.text.sees_images:
        raise FieldError("messages", SEES_NONE)
    return await _made("", prompts.of_chat(chat, room, seconds, pieces=pieces), served)


async def encode_prompt(served: ServedModel, request: GenerateRequest, seconds: float) -> Prompt:
    """Of the one of text, messages and token_ids that is set. Raises as `encode_text`, on that one."""
    if request.text is not None:
        return await encode_text(served, "text", request.text, seconds)
    if request.messages:
        return await encode_chat(served, request.chat, seconds)
    token_ids = request.token_ids
    if len(token_ids) <= served.model.context_length:
        check_ids("token_ids", token_ids, served.model)
    return Prompt(token_ids, len(token_ids))


async def _made(
    field: str, work: Awaitable[Prompt], served: ServedModel, fields: Mapping[str, str] = MappingProxyType({})
) -> Prompt:
    """The prompt, its errors put on `field` (empty: on the one that they name, or that `fields` has for it)."""
    try:
        return await work
    except FieldError as error:
        raise error.on(field or fields.get(error.field, error.field)) from None
    except TextAssetsError as error:
        raise FailedPrecondition(f"The tokenizer of model {served.model.name} can't be used: {error}") from None


def _prompts_of(served: ServedModel, field: str) -> Prompts:
    if served.prompts is None:
        raise FieldError(field, f"model {served.model.name} has no tokenizer; send token_ids")
    return served.prompts


async def encode_input(field: str, each: EmbedInput, served: ServedModel, seconds: float) -> tuple[int, ...]:
    """The ids of one input of Embed, which its error calls `field`. Raises FieldError."""
    if each.text is None:
        check_ids(f"{field}.token_ids", each.token_ids, served.model)
        check_fit(field, len(each.token_ids), None, served.model)
        return each.token_ids
    prompt = await encode_text(served, f"{field}.text", each.text, seconds)
    check_fit(field, prompt.num_tokens, None, served.model)
    return prompt.token_ids
