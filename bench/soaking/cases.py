"""What a soak asks, again and again, and how an answer is judged against the undisturbed one."""

import random
from dataclasses import dataclass
from typing import Any

from polyfleet.benchmark.work import WORDS

# Words of the prompts, about one token each: below and above the engine's boundaries of attention, up to near 2,000.
LENGTHS = (24, 900, 120, 1020, 40, 1400, 250, 1900, 130, 1100, 500, 1650)
SHARED = 880  # the long prompts begin alike, so that they hit the prefix cache where another one left it


@dataclass(frozen=True, slots=True)
class Case:
    """One request: greedy for `seed` None, else drawn."""

    name: str
    prompt: str
    max_tokens: int
    seed: int | None

    @property
    def options(self) -> dict[str, Any]:
        """Sampling, under names that both protocols know; what a model's own defaults would change is given too."""
        drawn = {"temperature": 0.0} if self.seed is None else {"temperature": 0.8, "top_p": 0.95, "seed": self.seed}
        return {"max_tokens": self.max_tokens, "ignore_eos": True, "top_p": 1.0, **drawn}


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a case. Over HTTP there are no ids."""

    ids: tuple[int, ...]
    text: str


def make_cases(count: int, max_tokens: int, seed: int) -> list[Case]:
    """Every other one drawn; short prompts go on for twice `max_tokens`."""
    rng = random.Random(seed)
    shared = rng.choices(WORDS, k=SHARED)
    cases = []
    for index in range(count):
        length = LENGTHS[index % len(LENGTHS)]
        words = shared[:] if length > SHARED else []
        words += rng.choices(WORDS, k=length - len(words))
        tokens = max_tokens if length > 200 else 2 * max_tokens
        drawn = index % 2 == 1
        kind = "drawn" if drawn else "greedy"
        cases.append(Case(f"{index}-{kind}-{length}", " ".join(words), tokens, seed + index if drawn else None))
    return cases


def first_difference(got: tuple[int, ...] | str, right: tuple[int, ...] | str, *, whole: bool) -> int | None:
    """The place where an answer leaves the right one; None where it does not. Not `whole`: what came may be less."""
    for place, (mine, theirs) in enumerate(zip(got, right, strict=False)):
        if mine != theirs:
            return place
    short = len(got) < len(right)
    return min(len(got), len(right)) if len(got) > len(right) or (whole and short) else None
