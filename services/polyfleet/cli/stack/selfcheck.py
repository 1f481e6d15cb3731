"""One real answer through the gateway, streamed, before `polyfleet serve` calls the stack ready."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyfleet.client import Client

QUESTION = "Name the capital of France in one sentence."
MAX_TOKENS = 24
# A model may have no chat template.
PROMPTS: tuple[dict[str, Any], ...] = (
    {"messages": [{"role": "user", "content": QUESTION}]},
    {"prompt": QUESTION},
)


def self_check(client: "Client", model: str, show: Callable[[str], None]) -> int:
    """Stream an answer of `model` to `show`; gives the number of tokens. Raises PolyfleetError."""
    from polyfleet.client import InvalidArgumentError

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
