"""The canary: a prompt whose greedy continuation is known, and the verdict on an engine's answer to it. Pure.

Expected tokens come from the float32 reference together with their margins, for executors that compute in int8 or
bfloat16 may rightly differ where two tokens are close.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, unique
from typing import Protocol

from polyfleet.wire.limits import MAX_PRIORITY
from polyfleet.wire.requests import SequenceRequest
from polyfleet.wire.sampling import GREEDY

CANARY_ID = "canary"  # of its sequence; a worker's own ones have a colon in their names
NUM_TOKENS = 8
PATTERN, REPEATS, CANDIDATES = 3, 4, 4
# In natural logs between the best and the second best token. On SmolLM2-135M the int8 executor moves a margin by up to
# 0.6 of the float32 reference, bfloat16 by up to 0.25.
TOLERANCE = 1.0


@dataclass(frozen=True, slots=True)
class CanaryReference:
    """A greedy continuation in float32. `margins` are parallel to `token_ids`: the token's lead in log probability."""

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    margins: tuple[float, ...]

    @property
    def num_decisive(self) -> int:
        """Tokens from the first on that no right executor can miss; behind a close call nothing can be said."""
        close = (index for index, margin in enumerate(self.margins) if margin <= TOLERANCE)
        return next(close, len(self.margins))


@unique
class CanaryResult(str, Enum):
    """How one run ended."""

    RIGHT = "right"
    WRONG = "wrong"
    FAILED = "failed"  # it could not be computed
    NO_REFERENCE = "no_reference"  # it was computed, and nobody knows whether rightly


@dataclass(frozen=True, slots=True)
class CanaryVerdict:
    """What one run says of the engine. `reason` is one sentence when the engine can't be trusted."""

    result: CanaryResult
    reason: str = ""


class CanarySource(Protocol):
    """Who has the canary, perhaps without its answer as yet."""

    def now(self) -> "Canary":
        """The one to run next."""
        ...

    def close(self) -> None:
        """It is not asked any more."""
        ...


@dataclass(frozen=True, slots=True)
class Canary:
    """The prompt to give to an engine and, if anybody knows it, the answer; `awaited`: somebody computes it."""

    prompt_ids: tuple[int, ...]
    reference: CanaryReference | None = None
    awaited: bool = False

    def now(self) -> "Canary":
        """Itself: what it knows, it knows already."""
        return self

    def close(self) -> None:
        """Nothing is computed for it."""

    def request(self, priority: int = -MAX_PRIORITY) -> SequenceRequest:
        """The prompt as an ordinary sequence that goes on past the model's own end."""
        return SequenceRequest(
            CANARY_ID, self.prompt_ids, GREEDY, max_tokens=NUM_TOKENS, ignore_eos=True, priority=priority
        )

    def judge(self, token_ids: Sequence[int], error: str = "") -> CanaryVerdict:
        """The verdict on a whole answer, or on the `error` that the sequence ended with."""
        if error:
            return CanaryVerdict(CanaryResult.FAILED, f"The canary could not be computed: {error.rstrip('.')}.")
        if self.reference is None:
            return CanaryVerdict(CanaryResult.NO_REFERENCE)
        expected = self.reference.token_ids[: self.reference.num_decisive]
        answers = (*token_ids[: len(expected)], *[-1] * (len(expected) - len(token_ids)))
        first = next(
            (index for index, pair in enumerate(zip(answers, expected, strict=True)) if pair[0] != pair[1]), None
        )
        if first is None:
            return CanaryVerdict(CanaryResult.RIGHT)
        answer = answers[first] if first < len(token_ids) else "missing"
        margin = self.reference.margins[first]
        reason = f"the canary's token {first + 1} is {answer} instead of {expected[first]}, which leads by {margin:.1f}"
        return CanaryVerdict(CanaryResult.WRONG, f"The model answers wrongly on this device: {reason}.")


def make_canary(prompt_ids: tuple[int, ...], reference: CanaryReference | None) -> Canary:
    """A canary with its reference, unless the reference's very first token is a close call already."""
    return Canary(prompt_ids, reference if reference is not None and reference.num_decisive else None)


def candidate_prompts(vocabulary_size: int) -> tuple[tuple[int, ...], ...]:
    """Prompts that repeat a pattern of three ids four times, so that any trained model is sure how they go on.

    The ids are spread over the vocabulary, whose ends hold special tokens.
    """
    ids = [vocabulary_size * (number + 1) // (PATTERN * CANDIDATES + 1) for number in range(PATTERN * CANDIDATES)]
    return tuple(tuple(ids[first : first + PATTERN]) * REPEATS for first in range(0, len(ids), PATTERN))


def most_decisive(references: Sequence[CanaryReference]) -> CanaryReference:
    """The one that says most: the longest decisive beginning, then the largest smallest margin in it."""
    return max(references, key=lambda each: (each.num_decisive, min(each.margins[: each.num_decisive], default=0.0)))
