"""Sampling parameters: the one dataclass that gateway, worker and engine share, with its ranges."""

from dataclasses import dataclass

from polyfleet.wire.limits import FieldError, check_range, shown

# What a model's own files may state for requests that leave it out.
NONE = -1  # of `seed` and `top_k`: as clients of other servers say that they state none
DEFAULTABLE = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one token is drawn; the meaning of each field is in `polyfleet/v1/inference.proto`.

    Order: penalties, biases of a request, temperature, top_k, top_p, min_p, one draw. `temperature == 0` is greedy.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken without a draw."""
        return self.temperature == 0.0

    @property
    def penalised(self) -> bool:
        """Whether logits depend on the tokens so far."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    def check(self, prefix: str = "sampling.") -> None:
        """Raise FieldError for the first value out of range; field names get `prefix`."""
        check_range(f"{prefix}temperature", self.temperature, 0, 2)
        check_range(f"{prefix}top_p", self.top_p, 0, 1, open_low=True)
        check_range(f"{prefix}min_p", self.min_p, 0, 1)
        check_range(f"{prefix}repetition_penalty", self.repetition_penalty, 0, 2, open_low=True)
        check_range(f"{prefix}presence_penalty", self.presence_penalty, -2, 2)
        check_range(f"{prefix}frequency_penalty", self.frequency_penalty, -2, 2)
        if self.top_k < 0:
            raise FieldError(f"{prefix}top_k", f"must be 0 (off) or more, not {shown(self.top_k)}")
        if not 0 <= self.seed < 2**64:
            raise FieldError(f"{prefix}seed", f"must fit an unsigned 64-bit integer, not {shown(self.seed)}")


GREEDY = SamplingParams(temperature=0.0)
