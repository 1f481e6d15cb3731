"""One real answer through the gateway, streamed, before `polyfleet serve` calls the stack ready."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyfleet.client import Client

QUESTION = "Name the capital of France in one sentence."
DOCUMENTS = ("Paris is the capital of France.", "Bread is made of flour.")
MAX_TOKENS = 24
# A model may have no chat template.
PROMPTS: tuple[dict[str, Any], ...] = (
    {"messages": [{"role": "user", "content": QUESTION}]},
    {"prompt": QUESTION},
)


def self_check(client: "Client", model: str, show: Callable[[str], None]) -> int:
    """Stream an answer of `model` to `show`, or tell it what one that draws no tokens gives instead; the number of
    tokens. Raises PolyfleetError."""
    from polyfleet.client import InvalidArgumentError

    facts = client.model(model)
    if facts.cross_encoder:
        ranking = client.rerank(QUESTION, DOCUMENTS, model=model, timeout=60.0)
        show(f"{len(ranking.results)} documents, the best with {ranking.results[0].relevance_score:.3f}")
        return ranking.usage.prompt_tokens
    if facts.embeds_only:
        embeddings = client.embed(QUESTION, model=model, timeout=60.0)
        show(f"a vector of {len(embeddings.vectors[0])} numbers")
        return embeddings.usage.prompt_tokens
    refusal: InvalidArgumentError | None = None
    for prompt in PROMPTS:
        try:
            return sum(_pieces(client, model, prompt, show))
        except InvalidArgumentError as error:
            refusal = error
    assert refusal is not None  # PROMPTS is not empty
    raise refusal


def _pieces(client: "Client", model: str, prompt: dict[str, Any], show: Callable[[str], None]) -> Iterator[int]:
    with client.stream(**prompt, model=model, max_tokens=MAX_TOKENS, temperature=0.0, timeout=60.0) as stream:
        for delta in stream:
            show(delta.text)
            yield len(delta.token_ids)
