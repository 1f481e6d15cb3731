"""How fast an engine is, learned from the steps that it served: no profile is taken ahead. Real or simulated."""

from collections.abc import Callable
from dataclasses import dataclass, field

DECODE_FIT_EVERY = 8  # steps: learning from each one would cost more than it tells
PREFILL_HALF_LIFE_TOKENS = 4096
FEW_TOKENS = 64  # of prompts in a step: how long they take says little of how long many take
DECODE_HALF_LIFE_TOKENS = 64  # of one sequence, that is: steps
DECODE_KEEP = 0.5 ** (1 / DECODE_HALF_LIFE_TOKENS)


@dataclass(slots=True)
class MovingRate:
    """Tokens per second as an exponentially weighted mean: a token counts half as much `half_life` tokens later."""

    half_life: float
    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, tokens: float, seconds: float) -> None:
        """Count `tokens` that took `seconds`."""
        keep: float = 0.5 ** (tokens / self.half_life)
        self.tokens = keep * self.tokens + tokens
        self.seconds = keep * self.seconds + seconds

    @property
    def per_second(self) -> float:
        """0 while nothing was counted."""
        return self.tokens / self.seconds if self.seconds else 0.0


class StepFit:
    """What a decode step takes: base + sequences x per_sequence + tokens that they hold x per_token, in seconds.

    Least squares over the steps of late, none of the three below 0. A step far longer than expected counts as one of
    OUTLIER times what was expected, so that a hiccup teaches little and a lasting change is learned all the same. Where
    steps were all alike, most of their time is taken for base.
    """

    KEEP, OUTLIER, RIDGE = 0.99, 4.0, (1e-6, 1e-2, 1e-2)
    SCALE = (1.0, 8.0, 4096.0)  # makes what the three multiply about as large
    SOLVE_EVERY, SWEEPS = 8, 12

    def __init__(self) -> None:
        self._moments = [0.0] * 9  # sums over steps: of 1, n, t, nn, nt, tt, s, ns, ts, where s are their seconds
        self._found = (0.0, 0.0, 0.0)
        self._num_steps = 0
        self.seconds = (0.0, 0.0, 0.0)  # base, per_sequence, per_token; all 0 while nothing was learned

    def add(self, num_sequences: int, num_tokens: int, seconds: float) -> None:
        """Learn from one step without prompt tokens."""
        n, t = num_sequences / self.SCALE[1], num_tokens / self.SCALE[2]
        base, per_n, per_t = self._found
        if expected := base + n * per_n + t * per_t:
            seconds = min(seconds, self.OUTLIER * expected)
        news = (1.0, n, t, n * n, n * t, t * t, seconds, n * seconds, t * seconds)
        self._moments = [self.KEEP * moment + new for moment, new in zip(self._moments, news, strict=True)]
        self._num_steps += 1
        if self._num_steps <= self.SOLVE_EVERY or self._num_steps % self.SOLVE_EVERY == 0:
            self._solve()

    def _solve(self) -> None:
        """Coordinate descent: each in turn is what the others leave, and never below 0."""
        one, n, t, nn, nt, tt, s, ns, ts = self._moments
        one, nn, tt = (each * (1 + ridge) for each, ridge in zip((one, nn, tt), self.RIDGE, strict=True))
        base, per_n, per_t = self._found
        for _ in range(self.SWEEPS):
            base = max(0.0, (s - n * per_n - t * per_t) / one)
            per_n = max(0.0, (ns - n * base - nt * per_t) / nn) if nn else 0.0
            per_t = max(0.0, (ts - t * base - nt * per_n) / tt) if tt else 0.0
        self._found = base, per_n, per_t
        self.seconds = base / self.SCALE[0], per_n / self.SCALE[1], per_t / self.SCALE[2]


@dataclass(slots=True)
class Rates:
    """Speed of prefill and of one decoding sequence.

    A step that does both belongs to prefill in the share of its rows that are prompt tokens. Steps with few of them,
    the ends of prompts that were cached or came from elsewhere say, count only while there was no larger one. Decode is
    what one sequence sees, whatever else its steps computed.
    """

    prefill: MovingRate = field(default_factory=lambda: MovingRate(PREFILL_HALF_LIFE_TOKENS))
    decode: MovingRate = field(default_factory=lambda: MovingRate(DECODE_HALF_LIFE_TOKENS))
    decode_step: StepFit = field(default_factory=StepFit)
    _num_decode_steps: int = 0
    _knows_many: bool = False  # whether a step had more than FEW_TOKENS of prompts

    def add_step(
        self, num_decodes: int, num_prefill_tokens: int, seconds: float, held_tokens: Callable[[], int] = lambda: 0
    ) -> None:
        """Learn from one step; `held_tokens` tells, where it is asked, how many all sequences have in the KV cache."""
        if num_prefill_tokens > FEW_TOKENS and not self._knows_many:
            self._knows_many, self.prefill = True, MovingRate(PREFILL_HALF_LIFE_TOKENS)
        if num_prefill_tokens > FEW_TOKENS or (num_prefill_tokens and not self._knows_many):
            share = num_prefill_tokens / (num_prefill_tokens + num_decodes)
            self.prefill.add(num_prefill_tokens, seconds * share)
        if num_decodes:
            decode = self.decode  # as its `add` does, at half of the cost
            decode.tokens = DECODE_KEEP * decode.tokens + 1
            decode.seconds = DECODE_KEEP * decode.seconds + seconds
            if not num_prefill_tokens:
                if self._num_decode_steps % DECODE_FIT_EVERY == 0:
                    self.decode_step.add(num_decodes, held_tokens(), seconds)
                self._num_decode_steps += 1
