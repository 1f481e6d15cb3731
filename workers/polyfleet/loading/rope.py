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
    if wavelength > scaling.original_context / scaling.low_factor:
        return frequency / scaling.factor
    if wavelength < scaling.original_context / scaling.high_factor:
        return frequency
    turns = scaling.original_context / wavelength
    blend = (turns - scaling.low_factor) / (scaling.high_factor - scaling.low_factor)
    return (1 - blend) * frequency / scaling.factor + blend * frequency
