"""Inverse frequencies of rotary position embeddings, with the scalings that Llama models use."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's stretching of low frequencies: waves longer than `original_context / low_factor` are divided by
    `factor`, those shorter than `original_context / high_factor` are kept, in between the two are blended.
    """

    factor: float
    low_factor: float
    high_factor: float
    original_context: float


def inverse_frequencies(head_dim: int, base: float) -> tuple[float, ...]:
    """base^(-2i / head_dim) for i = 0 … head_dim/2 - 1 (Su et al., RoFormer, arXiv 2104.09864)."""
    return tuple(base ** (-i / head_dim) for i in range(0, head_dim, 2))


def scale_llama3(frequencies: tuple[float, ...], scaling: Llama3Scaling) -> tuple[float, ...]:
    """Each inverse frequency after Llama3Scaling."""
    return tuple(_scale_one(frequency, scaling) for frequency in frequencies)


def _scale_one(frequency: float, scaling: Llama3Scaling) -> float:
    wavelength = 2 * math.pi / frequency
    if wavelength >= scaling.original_context / scaling.low_factor:
        return frequency / scaling.factor
    if wavelength < scaling.original_context / scaling.high_factor:
        return frequency
    turns = scaling.original_context / wavelength
    blend = (turns - scaling.low_factor) / (scaling.high_factor - scaling.low_factor)
    return (1 - blend) * frequency / scaling.factor + blend * frequency


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (Peng et al., arXiv 2309.00071): pairs that turn more than `beta_fast` times within the original context
    are kept, those that turn less than `beta_slow` times are divided by `factor`, in between the two are blended.
    """

    factor: float
    original_context: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True  # whether the bounds are whole pairs


def scale_yarn(frequencies: tuple[float, ...], base: float, scaling: YarnScaling) -> tuple[float, ...]:
    """Each inverse frequency, base^(-2i / n), after YarnScaling."""
    width = 2 * len(frequencies)

    def pair(turns: float) -> float:
        return width * math.log(scaling.original_context / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair(scaling.beta_fast), pair(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    span = high - low or 0.001
    shares = (min(max((index - low) / span, 0.0), 1.0) for index in range(len(frequencies)))
    return tuple(
        each / scaling.factor * share + each * (1 - share) for each, share in zip(frequencies, shares, strict=True)
    )


def yarn_amplitude(factor: float, scale: float = 1.0) -> float:
    """By how much queries and keys grow with a stretched context."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def longrope_amplitude(factor: float, original_context: float) -> float:
    """The same of LongRoPE (Ding et al., arXiv 2402.13753)."""
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original_context))
