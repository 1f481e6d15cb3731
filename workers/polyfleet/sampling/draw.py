"""What is asked of a row of logits, and what comes back. Plain data."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from polyfleet.wire.sampling import SamplingParams

if TYPE_CHECKING:  # processes that only pass tokens on need no numpy
    from polyfleet.sampling.counts import TokenCounts


@dataclass(frozen=True, slots=True)
class Draw:
    """The token wanted at `position` of its sequence, prompt and generated tokens together."""

    params: SamplingParams
    choice: int = 0
    position: int = 0
    num_logprobs: int | None = None  # alternatives reported beside the token; None: no logprobs at all
    counts: "TokenCounts | None" = None  # of the tokens before it; needed where `params` penalise

    @classmethod
    def behind(
        cls,
        prompt_ids: Iterable[int],
        generated_ids: Iterable[int],
        params: SamplingParams,
        choice: int = 0,
        num_logprobs: int | None = None,
    ) -> "Draw":
        """The draw behind these tokens, counted anew; a sequence keeps its counts from draw to draw."""
        from polyfleet.sampling.counts import TokenCounts

        prompt, generated = list(prompt_ids), list(generated_ids)
        counts = TokenCounts(prompt, generated) if params.penalised else None
        return cls(params, choice, len(prompt) + len(generated), num_logprobs, counts)


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A drawn token. Logprobs are natural logs of the model's own distribution, before penalties and temperature."""

    token_id: int
    logprob: float = 0.0
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()
