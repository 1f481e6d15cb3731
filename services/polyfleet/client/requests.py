"""From Python arguments to the messages of the public API. Values are judged by the gateway alone, not twice."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import fields
from typing import Any

from polyfleet.client.errors import invalid_argument
from polyfleet.v1 import inference_pb2 as pb
from polyfleet.wire.images import Image, image_of_url
from polyfleet.wire.limits import MAX_EMBED_INPUTS, FieldError
from polyfleet.wire.placements import TRAILER
from polyfleet.wire.requests import GenerateOptions, Message, Pooling
from polyfleet.wire.sampling import NONE
from polyfleet.wire.tools import ToolCall

Messages = Sequence[Message | Mapping[str, Any]]

POOLINGS = {each.value: pb.Pooling.Value(f"POOLING_{each.name}") for each in Pooling}

_SAMPLING_FIELDS = frozenset(field.name for field in pb.SamplingParams.DESCRIPTOR.fields)
_STRUCTURES = frozenset(field.name for field in pb.Structure.DESCRIPTOR.fields)
_MESSAGE_FIELDS = frozenset(field.name for field in pb.ChatMessage.DESCRIPTOR.fields) - {"parts"}


def generate_request(
    prompt: str | None, messages: Messages | None, token_ids: Sequence[int] | None, options: Mapping[str, Any]
) -> pb.GenerateRequest:
    """The request; `timeout` is not part of it.

    Raises TypeError for an unknown option, InvalidArgumentError for a value that its field can't hold.
    """
    unknown = options.keys() - GenerateOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown option {min(unknown)!r}; known are {', '.join(GenerateOptions.__annotations__)}")
    request = pb.GenerateRequest(messages=chat_messages(messages or ()))
    _set(request, "text", prompt)
    _extend(request, "token_ids", token_ids)
    for name, value in options.items():
        if name == "seed" and value == NONE:
            continue
        if name in _SAMPLING_FIELDS:
            _set(request.sampling, name, value, f"sampling.{name}")
        elif name == "stop":
            _extend(request, name, [value] if isinstance(value, str) else value)
        elif name in ("stop_token_ids", "tool_names", "logit_bias"):
            _extend(request, name, value)
        elif name == "tools":
            _extend(request, name, _json_texts(value))
        elif name == "template_arguments" and value is not None:
            _set(request, name, _json(name, value))
        elif name == "choices":
            if value is not None and not value:
                raise invalid_argument("structure.choices", "must hold at least one text")
            _extend(request.structure, name, value, "structure.choices")
        elif name in _STRUCTURES and value not in (None, False):
            text = _json(name, value) if name == "json_schema" and not isinstance(value, str) else value
            _set(request.structure, name, text, f"structure.{name}")
        elif name != "timeout" and name not in _STRUCTURES:
            _set(request, name, value)
    return request


def chat_messages(messages: Messages) -> list[pb.ChatMessage]:
    """Messages given as `Message` or as mappings with role, content and, if wanted, its other fields.

    A content is a text or a list of parts: texts and `Image`s, or mappings as OpenAI's clients have them. Calls of a
    mapping are `ToolCall`s, mappings of id, name and arguments, or as OpenAI's clients have them.
    """
    out = []
    for index, message in enumerate(_listed("messages", messages)):
        parts = _fields(message, Message) if isinstance(message, Message) else _mapping(f"messages[{index}]", message)
        unknown = parts.keys() - _MESSAGE_FIELDS
        if unknown:
            known = ", ".join(sorted(_MESSAGE_FIELDS))
            raise invalid_argument(f"messages[{index}].{min(unknown)}", f"unknown; known are {known}")
        path = f"messages[{index}].tool_calls"
        calls = enumerate(_listed(path, parts.pop("tool_calls", None) or ()))
        proto = pb.ChatMessage(tool_calls=[_tool_call(each, f"{path}[{number}]") for number, each in calls])
        if isinstance(parts.get("content"), (list, tuple)):
            items = enumerate(parts.pop("content"))
            proto.parts.extend(_content_part(each, f"messages[{index}].content[{number}]") for number, each in items)
        for name, value in parts.items():
            _set(proto, name, value, f"messages[{index}].{name}")
        out.append(proto)
    return out


def _content_part(part: str | Image | Mapping[str, Any], path: str) -> pb.ContentPart:
    if isinstance(part, Image):
        return pb.ContentPart(image=part.data, image_url=part.url)
    if isinstance(part, str):
        return pb.ContentPart(text=part)
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text":
        proto = pb.ContentPart(text="")
        _set(proto, "text", part.get("text"), f"{path}.text")
        return proto
    if kind != "image_url":
        raise invalid_argument(path, "must be a text, an Image, or a mapping of type text or image_url")
    url = part.get("image_url")
    try:
        image = image_of_url(url.get("url") if isinstance(url, Mapping) else url, f"{path}.image_url")
    except FieldError as error:
        raise invalid_argument(error.field, error.problem) from None
    return pb.ContentPart(image=image.data, image_url=image.url)


def _tool_call(call: ToolCall | Mapping[str, Any], path: str) -> pb.ToolCall:
    parts = _fields(call, ToolCall) if isinstance(call, ToolCall) else _mapping(path, call)
    parts |= _mapping(f"{path}.function", parts.get("function", {}))
    proto = pb.ToolCall()
    for name in ("id", "name", "arguments"):
        value = parts.get(name)
        _set(proto, name, value if value is None or isinstance(value, str) else _json(name, value), f"{path}.{name}")
    return proto


def _fields(value: Any, kind: type[Any]) -> dict[str, Any]:
    return {each.name: getattr(value, each.name) for each in fields(kind)}


def embed_request(
    inputs: str | Sequence[str | Sequence[int]], model: str, pooling: str, normalize: bool, dimensions: int
) -> pb.EmbedRequest:
    """One text, or a sequence whose items are texts or lists of token ids."""
    if pooling and pooling not in POOLINGS:
        raise invalid_argument("pooling", f"must be one of {', '.join(POOLINGS)}, not {pooling!r}")
    request = pb.EmbedRequest(model=model, pooling=POOLINGS.get(pooling, pb.POOLING_UNSPECIFIED), normalize=normalize)
    _set(request, "dimensions", dimensions or None, "dimensions")
    for index, item in enumerate([inputs] if isinstance(inputs, str) else _listed("inputs", inputs)):
        entry = request.inputs.add()
        if isinstance(item, str):
            entry.text = item
        else:
            _extend(entry, "token_ids", item, f"inputs[{index}].token_ids")
    return request


def batches(texts: str | Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """The texts, so many at a time."""
    if not 1 <= size <= MAX_EMBED_INPUTS:
        raise invalid_argument("batch_size", f"must be 1 to {MAX_EMBED_INPUTS}, not {size}")
    wanted = [texts] if isinstance(texts, str) else list(_listed("texts", texts))
    return (wanted[first : first + size] for first in range(0, len(wanted), size))


def rerank_request(
    query: str, documents: Sequence[str], model: str, top_n: int, max_tokens_per_doc: int
) -> pb.RerankRequest:
    """A query and the texts to be ranked."""
    request = pb.RerankRequest(model=model)
    _set(request, "query", query)
    _extend(request, "documents", documents)
    _set(request, "top_n", top_n)
    _set(request, "max_tokens_per_doc", max_tokens_per_doc)
    return request


def tokenize_request(
    text: str | None,
    messages: Messages | None,
    model: str,
    add_special_tokens: bool | None,
    tools: Sequence[Mapping[str, Any] | str] | None = None,
    template_arguments: Mapping[str, Any] | None = None,
) -> pb.TokenizeRequest:
    """Exactly one of text and messages is wanted; the gateway says so if not."""
    request = pb.TokenizeRequest(model=model, messages=chat_messages(messages or ()))
    _set(request, "text", text)
    _set(request, "add_special_tokens", add_special_tokens)
    _extend(request, "tools", _json_texts(tools))
    _set(request, "template_arguments", template_arguments and _json("template_arguments", template_arguments))
    return request


def _json_texts(values: Sequence[Mapping[str, Any] | str] | None) -> list[str]:
    return [each if isinstance(each, str) else _json("tools", each) for each in _listed("tools", values or ())]


def detokenize_request(token_ids: Sequence[int], model: str) -> pb.DetokenizeRequest:
    """Ids to be spelled."""
    request = pb.DetokenizeRequest(model=model)
    _extend(request, "token_ids", token_ids)
    return request


def placements_of(trailers: Mapping[str, str | bytes]) -> list[dict[str, Any]]:
    """What the trailers of a call say of its placements; none where they say nothing."""
    found: list[dict[str, Any]] = json.loads(trailers.get(TRAILER, "[]"))
    return found


def _set(message: Any, name: str, value: Any, label: str = "") -> None:
    if value is None:
        return
    try:
        setattr(message, name, value)
    except (TypeError, ValueError) as error:
        raise invalid_argument(label or name, f"can't be {value!r:.80}: {error}") from None


def _extend(message: Any, name: str, values: Any, label: str = "") -> None:
    if not values:
        return
    items = getattr(message, name)
    try:
        if isinstance(items, MutableMapping):
            items.update(values)
        else:
            items.extend(_listed(label or name, values))
    except (TypeError, ValueError) as error:
        raise invalid_argument(label or name, f"has a value that can't be sent: {error}") from None


def _listed(name: str, values: Any) -> Any:
    """The values, unless they are one text or mapping, which would be sent as its characters or keys."""
    if isinstance(values, (str, Mapping)) or not isinstance(values, Iterable):
        raise invalid_argument(name, f"must be a list, not {values!r:.80}")
    return values


def _mapping(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise invalid_argument(name, f"must be a mapping, not {value!r:.80}")
    return dict(value)


def _json(name: str, value: Any) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as error:
        raise invalid_argument(name, f"can't be written as JSON: {error}") from None
