"""What is measured: workloads, the clock's reading of one, and what every contender must be able to do."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

Setting = Mapping[str, str | int]  # what a contender is started with, besides the model
Clock = Callable[[], float]  # seconds
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}
FIRST_ID, LAST_ID = 100, 20_000  # ordinary tokens in every vocabulary of today's models


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds until every sequence had its first token; seconds and tokens from then until all tokens were there."""

    prefill_seconds: float
    decode_seconds: float
    decode_tokens: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Sequences of random tokens, all started at once, greedy, with no early end."""

    name: str
    num_sequences: int
    prompt_tokens: int
    new_tokens: int

    def prompts(self, seed: int) -> list[list[int]]:
        """Prompts that nobody has cached; the same for every contender."""
        rng = random.Random(f"{self.name}/{seed}")
        return [
            [rng.randrange(FIRST_ID, LAST_ID) for _ in range(self.prompt_tokens)] for _ in range(self.num_sequences)
        ]

    def rate(self, timing: Timing) -> float:
        """Tokens per second over all sequences: of decoding, or of prefill where one token is all that is wanted."""
        if self.new_tokens == 1:
            return self.num_sequences * self.prompt_tokens / timing.prefill_seconds
        return timing.decode_tokens / timing.decode_seconds


WORKLOADS = (
    Workload("decode_1", num_sequences=1, prompt_tokens=32, new_tokens=65),
    Workload("decode_16", num_sequences=16, prompt_tokens=32, new_tokens=33),
    Workload("prefill_512", num_sequences=1, prompt_tokens=512, new_tokens=1),
)
MAX_TOKENS = max(each.num_sequences * (each.prompt_tokens + each.new_tokens) for each in WORKLOADS)
MAX_LENGTH = max(each.prompt_tokens + each.new_tokens for each in WORKLOADS)
MAX_SEQUENCES = max(each.num_sequences for each in WORKLOADS)


class Contender(Protocol):
    """A loaded model."""

    def generate(self, prompts: Sequence[Sequence[int]], new_tokens: int, now: Clock) -> Timing:
        """Compute exactly `new_tokens` for each prompt, together, greedily; seconds are those of `now`."""
        ...
