"""What a request must be before anything is done for it. Every refusal is a FieldError that names field and limit.

First come the checks that need the request alone, then those that need its model and its prompt's ids.
"""

from collections.abc import Sequence

from polyfleet.wire.answers import Model
from polyfleet.wire.images import MAX_IMAGES
from polyfleet.wire.limits import (
    CONTEXT_LENGTH_EXCEEDED,
    MAX_CHOICES,
    MAX_DOCUMENTS,
    MAX_STOP_STRING_CHARACTERS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    REQUEST_ID,
    ROLES,
    FieldError,
    check_count,
    check_range,
    shown,
)
from polyfleet.wire.requests import (
    Continuation,
    EmbedInput,
    EmbedRequest,
    GenerateRequest,
    Message,
    RerankRequest,
    TokenizeRequest,
)
from polyfleet.wire.tools import CHOICES, MAX_TOOLS, Tool, read_tools

MAX_NAME_CHARACTERS = 64


def check_generate(request: GenerateRequest) -> None:
    """Everything about a GenerateRequest that does not depend on the model."""
    _check_prompt(request.text, request.messages, request.token_ids)
    request.sampling.check()
    if request.seed is not None and not 0 <= request.seed < 2**64:
        raise FieldError("sampling.seed", f"must fit an unsigned 64-bit integer, not {shown(request.seed)}")
    check_range("n", request.n, 1, MAX_CHOICES)
    request.check(least=0 if request.echo or request.prompt_logprobs is not None else 1)  # 0: the prompt is told alone
    _check_stops(request)
    _check_tools(request)
    _check_echo(request)
    _check_request_id(request.request_id)


def check_priority(request: GenerateRequest, highest: int) -> None:
    """`highest`: the caller's key allows no more. A request that asks for none has what the key allows, 0 at most."""
    if request.priority > max(0, highest):
        raise FieldError("priority", f"may be {highest} at most with this key, not {request.priority}")


def check_embed(request: EmbedRequest) -> None:
    """Everything about an EmbedRequest that does not depend on the model."""
    if not request.inputs:
        raise FieldError("inputs", "must hold at least one")
    for index, each in enumerate(request.inputs):
        _check_embed_input(f"inputs[{index}]", each)
    _check_request_id(request.request_id)


def check_dimensions(request: EmbedRequest, model: Model, width: int) -> None:
    """An embedding has so many values that as many can be kept; `width` 0: not known."""
    if request.dimensions < 0 or request.dimensions > width > 0:
        have = f"the embeddings of model {model.name} have {width}" if width else "none can be below 0"
        raise FieldError("dimensions", f"must be at most {width}, not {shown(request.dimensions)}: {have}")


def check_rerank(request: RerankRequest) -> None:
    """Everything about a RerankRequest that does not depend on the model."""
    if not 1 <= len(request.documents) <= MAX_DOCUMENTS:
        raise FieldError("documents", f"must be 1 to {MAX_DOCUMENTS}, not {len(request.documents)}")
    texts = [("query", request.query), *((f"documents[{at}]", each) for at, each in enumerate(request.documents))]
    for field, text in texts:
        if text == "":
            raise FieldError(field, "must be 1 character or more")
    for field in ("top_n", "max_tokens_per_doc"):
        if (value := getattr(request, field)) < 0:
            raise FieldError(field, f"must be 0 (all) or more, not {shown(value)}")
    _check_request_id(request.request_id)


def check_embeds(model: Model) -> None:
    """Whether it gives vectors."""
    if model.cross_encoder:
        problem = f"{model.name} is a cross encoder, which makes no embeddings"
        raise FieldError("model", f"{problem}: let it rank documents (Rerank, /v1/rerank)")


def check_ranks(model: Model, *, embeds: bool) -> None:
    """Whether it is made for telling which document answers a query; `embeds`: its files say how it makes vectors."""
    if not model.embeds_only and not embeds:
        raise FieldError("model", f"{model.name} generates text; documents are ranked by cross encoders and embedders")


def check_generates(model: Model) -> None:
    """Whether it draws tokens at all."""
    if model.cross_encoder:
        problem = f"{model.name} is a cross encoder and generates nothing"
        raise FieldError("model", f"{problem}: let it rank documents (Rerank, /v1/rerank)")
    if model.embeds_only:
        problem = f"{model.name} makes embeddings and generates nothing"
        raise FieldError("model", f"{problem}: ask for these (Embed, /v1/embeddings)")


def check_tokenize(request: TokenizeRequest) -> None:
    """Everything about a TokenizeRequest."""
    kinds = (request.text is not None) + bool(request.messages)
    if kinds != 1:
        raise FieldError("text", f"exactly one of text and messages must be set, not {_NUMBERS[kinds]}")
    _check_messages(request.messages)
    _read_tools(request)


def check_ids(field: str, token_ids: Sequence[int], model: Model) -> None:
    """Ids of a caller must be in the model's vocabulary."""
    if token_ids and not 0 <= min(token_ids) <= max(token_ids) < model.vocabulary_size:
        wrong = next(i for i in token_ids if not 0 <= i < model.vocabulary_size)
        raise FieldError(field, f"must be below the vocabulary size {model.vocabulary_size}, not {shown(wrong)}")


def check_context(field: str, num_tokens: int, model: Model) -> None:
    """A prompt must fit the model's context, where that is known."""
    if num_tokens > model.context_length > 0:
        raise FieldError(field, f"is {num_tokens} tokens long, but {_context(model)}", CONTEXT_LENGTH_EXCEEDED)


def check_fit(field: str, num_prompt: int, wanted: Continuation | None, model: Model) -> None:
    """The prompt, and what is wanted behind it, must fit the model's context. `field` holds the prompt."""
    if num_prompt == 0:
        raise FieldError(field, "must give at least one token")
    room = model.context_length - num_prompt
    if room < 0 or (room == 0 and wanted is not None):
        problem = f"is {num_prompt} tokens long, which leaves no room: {_context(model)}"
        raise FieldError(field, problem, CONTEXT_LENGTH_EXCEEDED)
    if wanted is not None:
        wanted.check_room(room, f"{_context(model)}, and the prompt has {num_prompt}")


def _context(model: Model) -> str:
    """In the words that OpenAI uses and that proxies look for."""
    return f"this model's maximum context length is {model.context_length} tokens"


def check_sampling_fits(request: GenerateRequest, model: Model) -> None:
    """Values that the vocabulary bounds."""
    if request.sampling.top_k > model.vocabulary_size:
        raise FieldError(
            "sampling.top_k",
            f"must be at most the vocabulary size {model.vocabulary_size}, not {shown(request.sampling.top_k)}",
        )
    check_ids("stop_token_ids", request.stop_token_ids, model)
    check_ids("logit_bias", tuple(request.logit_bias), model)


_NUMBERS = ("none", "one", "two", "three")


def _check_prompt(text: str | None, messages: tuple[Message, ...], token_ids: tuple[int, ...]) -> None:
    kinds = {"text": text is not None, "messages": bool(messages), "token_ids": bool(token_ids)}
    given = [name for name, present in kinds.items() if present]
    if len(given) != 1:
        field = given[1] if given else "text"
        raise FieldError(field, f"exactly one of text, messages and token_ids must be set, not {_NUMBERS[len(given)]}")
    if text == "":
        raise FieldError("text", "must be 1 character or more")
    _check_messages(messages)


def _check_messages(messages: Sequence[Message]) -> None:
    if (count := sum(len(message.images) for message in messages)) > MAX_IMAGES:
        raise FieldError("messages", f"may show {MAX_IMAGES} images at most, not {count}")
    for index, message in enumerate(messages):
        if message.tool_calls and message.role != "assistant":
            problem = f"calls of tools are an assistant's, and not of role {message.role:.50}"
            raise FieldError(f"messages[{index}].tool_calls", problem)
        if message.role not in ROLES:
            raise FieldError(f"messages[{index}].role", f"must be one of {', '.join(ROLES)}, not {message.role!r:.50}")
        if len(message.name) > MAX_NAME_CHARACTERS:
            raise FieldError(
                f"messages[{index}].name",
                f"must be at most {MAX_NAME_CHARACTERS} characters long, not {len(message.name)}",
            )


def _check_stops(request: GenerateRequest) -> None:
    check_count("stop", len(request.stop), MAX_STOP_STRINGS)
    for index, stop in enumerate(request.stop):
        if not 1 <= len(stop) <= MAX_STOP_STRING_CHARACTERS:
            raise FieldError(
                f"stop[{index}]", f"must be 1 to {MAX_STOP_STRING_CHARACTERS} characters long, not {len(stop)}"
            )
    check_count("stop_token_ids", len(request.stop_token_ids), MAX_STOP_TOKEN_IDS)


def _check_echo(request: GenerateRequest) -> None:
    if request.echo and request.messages:
        raise FieldError("echo", "needs a text or token ids: a chat has no text that could be repeated")


def _check_tools(request: GenerateRequest) -> None:
    tools = _read_tools(request, request.tool_names)
    if request.tool_choice not in ("", *CHOICES):
        raise FieldError("tool_choice", f"must be one of {', '.join(CHOICES)}, not {request.tool_choice!r:.50}")
    if request.tool_choice == "required" and not tools:
        raise FieldError("tool_choice", "can't be required without tools")
    if request.structure is not None:
        request.structure.check()
    for field in ("structure",) if request.structure else ("tool_choice",) if request.tool_choice == "required" else ():
        for name in ("ignore_eos", "min_tokens"):
            if getattr(request, name):
                raise FieldError(name, f"can't be set with {field}: the answer has to end when that says so")


def _read_tools(request: GenerateRequest | TokenizeRequest, names: Sequence[str] = ()) -> tuple[Tool, ...]:
    check_count("tools", len(request.tools), MAX_TOOLS)
    tools = read_tools(request.tools, names)
    if tools and not request.messages:
        raise FieldError("tools", "needs messages: a chat template tells the model of them")
    return tools


def _check_embed_input(field: str, each: EmbedInput) -> None:
    kinds = (each.text is not None) + bool(each.token_ids)
    if kinds != 1:
        raise FieldError(field, f"exactly one of text and token_ids must be set, not {_NUMBERS[kinds]}")
    if each.text == "":
        raise FieldError(f"{field}.text", "must be 1 character or more")


def _check_request_id(request_id: str) -> None:
    if request_id and not REQUEST_ID.fullmatch(request_id):
        raise FieldError("request_id", "must be at most 128 of the characters A-Z a-z 0-9 . _ : -")
