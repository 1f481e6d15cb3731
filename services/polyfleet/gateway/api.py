"""What gRPC and HTTP ask of the gateway's core: `GenerationApi`, in requests and answers of `polyfleet.wire`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from polyfleet.wire.answers import Delta, Embeddings, Model, Ranking, Tokens
from polyfleet.wire.limits import MAX_PRIORITY
from polyfleet.wire.requests import DetokenizeRequest, EmbedRequest, GenerateRequest, RerankRequest, TokenizeRequest
from polyfleet.wire.tracing import TraceContext

SESSION = "x-session-id"  # the header, or key of gRPC's metadata, with a call's session


@dataclass(frozen=True, slots=True)
class Call:
    """What is known of a call beside its request.

    `method` is the label in metrics and logs (`Generate`, `chat.completions`, …), `key_id` names the caller's key and
    `tenant` whom it belongs to (both empty without keys), `max_priority` the highest that it may ask for, `timeout` is
    in seconds from now (None: the gateway's own limit alone), `trace` the caller's. `admitted` is called once nothing
    is wrong with the request itself, and it runs or waits for a worker. `explained` is told what decided each
    placement, as `placement.explain` has it.
    """

    method: str
    key_id: str = ""
    timeout: float | None = None
    tenant: str = ""
    trace: TraceContext | None = None
    max_priority: int = MAX_PRIORITY
    session: str = ""
    explained: Callable[[dict[str, Any]], None] | None = field(default=None, compare=False, repr=False)
    admitted: Callable[[], None] = field(default=lambda: None, compare=False, repr=False)


class GenerationApi(Protocol):
    """The gateway's core, as both protocols use it. Every method raises `errors.ApiError` and nothing else."""

    def generate(self, request: GenerateRequest, call: Call) -> AsyncGenerator[Delta, None]:
        """The deltas of all choices as they come. Iterate inside `contextlib.aclosing`: closing cancels the request.

        Errors that are found before anything runs are raised by the first `anext`; later ones break the stream.
        """
        ...

    async def embed(self, request: EmbedRequest, call: Call) -> Embeddings:
        """One vector per input."""
        ...

    async def rerank(self, request: RerankRequest, call: Call) -> Ranking:
        """The documents that answer the query best."""
        ...

    async def tokenize(self, request: TokenizeRequest, call: Call) -> Tokens:
        """The ids that `generate` would compute for this prompt."""
        ...

    async def detokenize(self, request: DetokenizeRequest, call: Call) -> str:
        """The text of these ids, special tokens as they are spelled."""
        ...

    def models(self) -> tuple[Model, ...]:
        """Every model that is served or being loaded, by name."""
        ...

    def model(self, name: str) -> Model:
        """The model of that name. Raises NotFound, which lists those that there are."""
        ...
