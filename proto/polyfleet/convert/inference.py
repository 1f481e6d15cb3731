"""The public API's requests and answers. Only how many items a request has is checked here."""

from functools import lru_cache
from typing import Any

from polyfleet.convert.codec import Codec
from polyfleet.v1 import inference_pb2 as pb
from polyfleet.wire.answers import Delta, Embeddings, Model, Ranked, Ranking, Tokens, Usage
from polyfleet.wire.images import Image, image_of_url
from polyfleet.wire.limits import (
    MAX_DOCUMENTS,
    MAX_EMBED_INPUTS,
    MAX_LOGIT_BIASES,
    MAX_MESSAGES,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    FieldError,
    check_count,
)
from polyfleet.wire.requests import (
    DetokenizeRequest,
    EmbedRequest,
    GenerateRequest,
    Message,
    RerankRequest,
    TokenizeRequest,
)
from polyfleet.wire.sampling import DEFAULTABLE, NONE, SamplingParams
from polyfleet.wire.tools import MAX_TOOLS

_GENERATE = Codec(GenerateRequest, pb.GenerateRequest)
_EMBED = Codec(EmbedRequest, pb.EmbedRequest)
_RERANK = Codec(RerankRequest, pb.RerankRequest)
_RANKED = Codec(Ranked, pb.RankedDocument)
_MESSAGE = Codec(Message, pb.ChatMessage)
_TOKENIZE = Codec(TokenizeRequest, pb.TokenizeRequest)
_DETOKENIZE = Codec(DetokenizeRequest, pb.DetokenizeRequest)
_DELTA = Codec(Delta, pb.GenerateResponse)
_USAGE = Codec(Usage, pb.Usage)
_TOKENS = Codec(Tokens, pb.TokenizeResponse)
_MODEL = Codec(Model, pb.Model)
_NOTHING_MORE = Delta(0)[3:]  # than a choice's text and tokens
_MOST = {
    "messages": MAX_MESSAGES,
    "stop": MAX_STOP_STRINGS,
    "stop_token_ids": MAX_STOP_TOKEN_IDS,
    "logit_bias": MAX_LOGIT_BIASES,
    "inputs": MAX_EMBED_INPUTS,
    "documents": MAX_DOCUMENTS,
    "tools": MAX_TOOLS,
    "tool_names": MAX_TOOLS,
}


def generate_request(message: pb.GenerateRequest) -> GenerateRequest:
    """From a client; what is absent has inference.proto's default, or is the model's own. Raises FieldError."""
    _check_counts(message)
    stated = {field.name: value for field, value in message.sampling.ListFields()}
    seed, left_out = stated.pop("seed", None), frozenset(DEFAULTABLE) - stated.keys()
    if stated.get("top_k") == NONE:
        stated["top_k"] = 0
    messages = _messages(message)
    return _GENERATE.value(message, messages=messages, sampling=SamplingParams(**stated), left_out=left_out, seed=seed)


def embed_request(message: pb.EmbedRequest) -> EmbedRequest:
    """From a client. Raises FieldError, for a pooling that does not exist too."""
    _check_counts(message)
    return _EMBED.value(message)


def rerank_request(message: pb.RerankRequest) -> RerankRequest:
    """From a client. Raises FieldError."""
    _check_counts(message)
    return _RERANK.value(message)


def tokenize_request(message: pb.TokenizeRequest) -> TokenizeRequest:
    """From a client. Raises FieldError."""
    _check_counts(message)
    return _TOKENIZE.value(message, messages=_messages(message))


def detokenize_request(message: pb.DetokenizeRequest) -> DetokenizeRequest:
    """From a client."""
    return _DETOKENIZE.value(message)


def _messages(message: pb.GenerateRequest | pb.TokenizeRequest) -> tuple[Message, ...]:
    """The turns of a chat. Raises FieldError."""
    return tuple(
        _MESSAGE.value(each, content=_content(each, f"messages[{index}]"))
        for index, each in enumerate(message.messages)
    )


def _content(message: pb.ChatMessage, path: str) -> str | tuple[str | Image, ...] | None:
    """In parts where it came so; a message without any that calls tools has none, as JSON's null."""
    if not message.parts:
        return message.content or (None if message.tool_calls else "")
    if message.content:
        raise FieldError(f"{path}.content", "must be empty where there are parts")
    for index, part in enumerate(message.parts):
        if sum(map(bool, (part.text, part.image, part.image_url))) != 1:
            raise FieldError(f"{path}.parts[{index}]", "must have one of text, image and image_url")
    return tuple(_part(part, f"{path}.parts[{index}].image_url") for index, part in enumerate(message.parts))


def _part(part: pb.ContentPart, path: str) -> str | Image:
    if part.image_url:
        return image_of_url(part.image_url, path)
    return Image(part.image) if part.image else part.text


def _check_counts(message: Any) -> None:
    """Of the fields that a message has items in."""
    for field, items in message.ListFields():
        if (most := _MOST.get(field.name)) is not None:
            check_count(field.name, len(items), most)


def generate_response(delta: Delta) -> pb.GenerateResponse:
    """To a client. Nobody may change it: that of one plain token is kept, as most come again and again."""
    plain = len(delta.token_ids) == 1 and delta[3:] == _NOTHING_MORE
    return _plain_response(delta) if plain else _DELTA.message(delta)


@lru_cache(maxsize=1 << 13)
def _plain_response(delta: Delta) -> pb.GenerateResponse:
    return _DELTA.message(delta)


def delta_of(message: pb.GenerateResponse) -> Delta:
    """From a gateway; the finish reason is UNKNOWN where a newer one has another."""
    return _DELTA.value(message)


def embed_response(result: Embeddings) -> pb.EmbedResponse:
    """To a client."""
    vectors = [pb.Embedding(values=vector) for vector in result.vectors]
    return pb.EmbedResponse(embeddings=vectors, usage=_USAGE.message(result.usage))


def embeddings_of(message: pb.EmbedResponse) -> Embeddings:
    """From a gateway."""
    return Embeddings(tuple(tuple(each.values) for each in message.embeddings), _USAGE.value(message.usage))


def rerank_response(ranking: Ranking) -> pb.RerankResponse:
    """To a client."""
    return pb.RerankResponse(results=map(_RANKED.message, ranking.results), usage=_USAGE.message(ranking.usage))


def ranking_of(message: pb.RerankResponse) -> Ranking:
    """From a gateway."""
    return Ranking(tuple(map(_RANKED.value, message.results)), _USAGE.value(message.usage))


def tokenize_response(tokens: Tokens) -> pb.TokenizeResponse:
    """To a client."""
    return _TOKENS.message(tokens)


def tokens_of(message: pb.TokenizeResponse) -> Tokens:
    """From a gateway."""
    return _TOKENS.value(message)


def model_message(model: Model) -> pb.Model:
    """To a client."""
    defaults = pb.SamplingParams(**model.sampling_defaults) if model.sampling_defaults else None  # type: ignore[arg-type]
    return _MODEL.message(model, sampling_defaults=defaults)


def model_of(message: pb.Model) -> Model:
    """From a gateway."""
    defaults = {field.name: value for field, value in message.sampling_defaults.ListFields()}
    return _MODEL.value(message, sampling_defaults=defaults)
