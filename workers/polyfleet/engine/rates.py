"""How fast this engine is, learned from the steps that it served: no profile is taken ahead."""

from dataclasses import dataclass, field

PREFILL_HALF_LIFE_TOKENS = 4096
DECODE_HALF_LIFE_TOKENS = 64  # of one sequence, that is: steps


@dataclass(slots=True)
class MovingRate:
    """Tokens per second as an exponentially weighted mean: a token counts half as much `half_life` tokens later."""

    half_life: float
    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, tokens: float, seconds: float) -> None:
        """Count `tokens` that took `seconds`."""
        keep = 0.5 ** (tokens / self.half_life)
        self.tokens = keep * self.tokens + tokens
        self.seconds = keep * self.seconds + seconds

    @property
    def per_second(self) -> float:
        """0 while nothing was counted."""
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class Rates:
    """Speed of prefill and of one decoding sequence.

    A step that does both belongs to prefill in the share of its rows that are prompt tokens. Decode is what one
    sequence sees, whatever else its steps computed.
    """

    prefill: MovingRate = field(default_factory=lambda: MovingRate(PREFILL_HALF_LIFE_TOKENS))
    decode: MovingRate = field(default_factory=lambda: MovingRate(DECODE_HALF_LIFE_TOKENS))

    def add_step(self, num_decodes: int, num_prefill_tokens: int, seconds: float) -> None:
        """Learn from one step."""
        if num_prefill_tokens:
            share = num_prefill_tokens / (num_prefill_tokens + num_decodes)
            self.prefill.add(num_prefill_tokens, seconds * share)
        if num_decodes:
            self.decode.add(1, seconds)
