"""One benchmark request and what became of it."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# Frequent short words: with a space before it, each is one token in the byte-pair vocabularies of current models.
_FREQUENT = (
    "the of and to in is you that it he was for on are as with his they at be this have from or one had by word but "
    "not what all were we when your can said there use an each which she do how their if will up other about out many "
    "then them these so some her would make like him into time has look two more write go see number no way could"
)
WORDS = _FREQUENT.split()
PROMPT_KINDS = ("ids", "text", "chat")
FIRST_ID, LAST_ID = 100, 999  # ordinary tokens in every vocabulary of 1000 or more


@dataclass(frozen=True, slots=True)
class Job:
    """A request to make: text or token ids, and exactly `max_tokens` tokens behind it where the server agrees."""

    text: str = ""
    token_ids: tuple[int, ...] = ()
    chat: bool = False
    max_tokens: int = 16


@dataclass(frozen=True, slots=True)
class Outcome:
    """Times in seconds on the monotonic clock; `first` and `last` are the arrivals of the first and last token.

    `due` is when the request should have started: in an open loop, waiting for the generator itself counts.
    """

    due: float
    first: float = 0.0
    last: float = 0.0
    end: float = 0.0
    prompt_tokens: int = 0
    tokens: int = 0
    error: str = ""

    @property
    def ttft(self) -> float:
        """Time to first token."""
        return self.first - self.due

    @property
    def tpot(self) -> float | None:
        """Mean time between tokens; None for fewer than two."""
        return (self.last - self.first) / (self.tokens - 1) if self.tokens > 1 else None

    @property
    def latency(self) -> float:
        """Start to end."""
        return self.end - self.due


def make_jobs(kind: str, prompt_tokens: int, max_tokens: int, seed: int) -> Iterator[Job]:
    """Endless jobs, each with a prompt of its own, so that no prefix cache helps. Text has about `prompt_tokens`."""
    rng = random.Random(seed)
    while True:
        if kind == "ids":
            ids = tuple(rng.randint(FIRST_ID, LAST_ID) for _ in range(prompt_tokens))
            yield Job(token_ids=ids, max_tokens=max_tokens)
        else:
            text = " ".join(rng.choices(WORDS, k=prompt_tokens))
            yield Job(text=text, chat=kind == "chat", max_tokens=max_tokens)


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the values lie, interpolated between neighbours; NaN of none."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
