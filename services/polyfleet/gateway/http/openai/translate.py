"""From request bodies to what the gateway's core takes. Pure; ranges are the core's to judge."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import msgspec

from polyfleet.gateway.http.bodies import (
    NULL,
    ChatBody,
    CompletionBody,
    ContentPart,
    Effort,
    EmbeddingsBody,
    GenerateBody,
    MessageBody,
    Messages,
    TokenizeBody,
    ToolCallBody,
)
from polyfleet.gateway.http.decoding import (
    decode_inputs,
    decode_messages,
    decode_part,
    decode_tools,
    refuse_unsupported,
)
from polyfleet.gateway.http.openai import response_format, tool_choice
from polyfleet.gateway.http.stated import one_or_all, sampling_of, stated
from polyfleet.wire.images import Image, image_of_url
from polyfleet.wire.limits import MAX_MESSAGES, FieldError
from polyfleet.wire.requests import EmbedInput, EmbedRequest, GenerateRequest, Message, Pooling
from polyfleet.wire.sampling import NONE, SamplingParams
from polyfleet.wire.tools import MAX_TOOLS, ToolCall

Parts = tuple[str | Image, ...]
MAX_PROMPTS = 64
MAX_INPUTS = 2048  # as OpenAI has it; gRPC takes as many as fit into the message of the answer
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's default for text completions; chat has none
# Parts of a content that say something, and where; the middle two are what Responses call them.
TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_OWN_SHAPE = {"seed", "stop", "max_tokens", "logprobs"}  # here, so that they are looked at one by one
_PLAIN, _SAMPLING = (
    {each.name for each in fields(kind)} & set(GenerateBody.__struct_fields__) - _OWN_SHAPE
    for kind in (GenerateRequest, SamplingParams)
)


def chat_request(body: ChatBody, request_id: str) -> GenerateRequest:
    """The request of a chat completion. Raises FieldError."""
    _check_stream_options(body)
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise FieldError("max_tokens", "is the old name of max_completion_tokens; give one of them")
    if body.top_logprobs and not body.logprobs:
        raise FieldError("top_logprobs", "needs logprobs to be true")
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    messages, begun = chat_messages(body.messages)
    tools = decode_tools(body.tools, MAX_TOOLS)
    choice, names = tool_choice.read(body.tool_choice)
    return replace(
        _request(body, request_id, messages=messages, max_tokens=max_tokens, logprobs=logprobs),
        tools=tools,
        tool_choice=choice,
        tool_names=names,
        structure=response_format.read(body, body.response_format),
        parallel_tool_calls=body.parallel_tool_calls is not False,
        template_arguments=template_arguments(
            body.chat_template_kwargs, body.reasoning_effort, **turn(body, begun=begun)
        ),
    )


def chat_messages(value: Messages) -> tuple[tuple[Message, ...], bool]:
    """The messages of a chat, and whether the last one is the answer begun (`prefix`). Raises FieldError."""
    bodies = decode_messages(value, MAX_MESSAGES)
    if not bodies:
        raise FieldError("messages", "must hold at least one message")
    for index, body in enumerate(bodies[:-1]):
        if body.prefix:
            raise FieldError(f"messages[{index}].prefix", "can be true of the last message alone")
    messages = tuple(_message(message, f"messages[{index}]") for index, message in enumerate(bodies))
    return messages, bool(bodies[-1].prefix)


def turn(body: ChatBody | TokenizeBody, *, begun: bool) -> dict[str, bool]:
    """The template's variables that say whose turn it is; `begun`: its last message is to go on. Raises FieldError."""
    goes_on = body.continue_final_message or begun
    if goes_on and body.add_generation_prompt:
        field = "add_generation_prompt"
        raise FieldError(field, "begins an answer, and can't be true where the last message is to be gone on with")
    stated = {"add_generation_prompt": body.add_generation_prompt, "continue_final_message": goes_on or None}
    return {name: value for name, value in stated.items() if value is not None}


def completion_requests(body: CompletionBody, request_id: str) -> list[GenerateRequest]:
    """One request per prompt; several get the request id with `-0`, `-1`, … behind it. Raises FieldError."""
    _check_stream_options(body)
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise FieldError("best_of", "is not supported by this server; leave it out or set it to n")
    prompts: Sequence[str | list[int]] = decode_inputs(body.prompt, "prompt", MAX_PROMPTS)
    max_tokens = DEFAULT_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    ids = [request_id] if len(prompts) == 1 else [f"{request_id[:120]}-{index}" for index in range(len(prompts))]
    structure = response_format.read(body)
    return [
        replace(
            _request(body, prompt_id, prompt=prompt, max_tokens=max_tokens, logprobs=body.logprobs),
            structure=structure,
            echo=bool(body.echo),
            prompt_logprobs=body.logprobs if body.echo else None,
        )
        for prompt_id, prompt in zip(ids, prompts, strict=True)
    ]


def embed_request(body: EmbeddingsBody, request_id: str) -> EmbedRequest:
    """The request of an embeddings call; vectors have length 1 unless `normalize` is false. Raises FieldError."""
    inputs = tuple(
        EmbedInput(text=item) if isinstance(item, str) else EmbedInput(token_ids=tuple(item))
        for item in decode_inputs(body.input, "input", MAX_INPUTS)
    )
    return EmbedRequest(
        model=body.model or "",
        inputs=inputs,
        pooling=None if body.pooling is None else Pooling(body.pooling),
        normalize=body.normalize is not False,
        dimensions=_dimensions(body.dimensions),
        request_id=request_id,
    )


def _dimensions(wanted: int | None) -> int:
    if wanted is not None and wanted < 1:
        raise FieldError("dimensions", f"must be 1 or more, not {wanted}")
    return wanted or 0


def _request(
    body: GenerateBody,
    request_id: str,
    *,
    prompt: str | list[int] | None = None,
    messages: tuple[Message, ...] = (),
    max_tokens: int | None,
    logprobs: int | None,
) -> GenerateRequest:
    given = stated(body, _SAMPLING)
    if given.get("top_k") == NONE:
        given["top_k"] = 0
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    return GenerateRequest(
        **stated(body, _PLAIN),
        **sampling_of(given),
        text=prompt if isinstance(prompt, str) else None,
        messages=messages,
        token_ids=tuple(prompt) if isinstance(prompt, list) else (),
        seed=None if body.seed == NONE else body.seed,
        max_tokens=max_tokens,
        stop=stop,
        logprobs=logprobs,
        request_id=request_id,
        continuous_usage=bool(body.stream_options and body.stream_options.continuous_usage_stats),
    )


def _message(message: MessageBody, path: str) -> Message:
    refuse_unsupported(message, f"{path}.")
    calls = tuple(_call(call, f"{path}.tool_calls[{index}]") for index, call in enumerate(message.tool_calls or ()))
    return Message(
        role="system" if message.role == "developer" else message.role,
        content=_content(message, calls, path),
        name=message.name or "",
        tool_calls=calls,
        tool_call_id=message.tool_call_id or "",
        reasoning=message.reasoning_content or message.reasoning or "",
    )


def _content(message: MessageBody, calls: Sequence[ToolCall], path: str) -> str | Parts | None:
    """What was said; an answer may say nothing, or why not, and a tool may give nothing back."""
    if message.content is None and message.role in ("assistant", "tool"):
        return message.refusal or (None if calls else "")
    return _parts(message.content, f"{path}.content")


def template_arguments(given: msgspec.Raw, effort: Effort | None, **more: bool) -> str:
    """A chat template's variables as JSON: those given, `more`, and those by which one is told how much to think.

    A template that knows none of these is not changed by them. Raises FieldError.
    """
    if effort is None and not more:
        return _json_text(given)
    known: dict[str, Any] = dict(more)
    if effort is not None:
        thinking = effort != "none"
        known |= {"reasoning_effort": effort, "enable_thinking": thinking, "thinking": thinking}
    if bytes(given) != NULL:
        known |= decode_part(given, dict[str, msgspec.Raw], "chat_template_kwargs")
    return msgspec.json.encode(known).decode()


def _json_text(value: msgspec.Raw) -> str:
    """JSON as it came; nothing for null."""
    return "" if bytes(value) == NULL else bytes(value).decode()


def _call(call: ToolCallBody, path: str) -> ToolCall:
    if call.type not in (None, "function"):
        raise FieldError(f"{path}.type", f"must be function, not {call.type:.40}")
    if call.function is None:
        raise FieldError(f"{path}.function", "is missing")
    arguments = call.function.arguments or ""
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    return ToolCall(call.id, call.function.name, text)


def _parts(content: str | Sequence[ContentPart] | None, path: str) -> str | Parts:
    """A message's text, or its parts where it has others."""
    if content is None:
        raise FieldError(path, "must be a string or a list of parts")
    if isinstance(content, str):
        return content
    return one_or_all([_part(part, f"{path}[{index}]") for index, part in enumerate(content)])


def _part(part: ContentPart, path: str) -> str | Image:
    if part.type == "image_url":
        given = part.image_url
        return image_of_url(given if isinstance(given, str) or given is None else given.url, f"{path}.image_url")
    if part.type not in TEXTS:
        raise FieldError(f"{path}.type", f"must be text or image_url, not {part.type:.40}")
    text: str | None = getattr(part, TEXTS[part.type])
    if text is None:
        raise FieldError(f"{path}.{TEXTS[part.type]}", "is missing")
    return text


def _check_stream_options(body: GenerateBody) -> None:
    options = body.stream_options
    if options is not None and not body.stream:
        raise FieldError("stream_options", "needs stream to be true")
    if options is not None and options.continuous_usage_stats and not options.include_usage:
        raise FieldError("stream_options.continuous_usage_stats", "needs include_usage to be true")
