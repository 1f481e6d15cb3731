"""Rotary position embeddings as a config.json states them."""

from collections.abc import Mapping
from typing import Any

from polyfleet.loading.fields import Fields
from polyfleet.loading.rope import Llama3Scaling, inverse_frequencies, scale_llama3

DEFAULT_BASE = 10000.0
COMMON = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor", "original_max_position_embeddings"})
KINDS: Mapping[str, frozenset[str]] = {  # kind -> what it reads besides
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor"}),
}


def read_frequencies(fields: Fields, head_dim: int) -> tuple[float, ...]:
    """Inverse frequencies, head_dim / 2 of them; raises ModelFileError for rope that is not understood.

    Newer files state it in `rope_parameters`, older ones in `rope_theta` and `rope_scaling`.
    """
    rope = _section(fields)
    kind = rope.text("rope_type", rope.text("type", "default"))
    _check(fields, rope, kind)
    base = rope if rope.has("rope_theta") else fields
    frequencies = inverse_frequencies(head_dim, base.positive("rope_theta", DEFAULT_BASE))
    if kind == "linear":
        factor = rope.positive("factor")
        return tuple(frequency / factor for frequency in frequencies)
    if kind == "llama3":
        low, high = rope.positive("low_freq_factor"), rope.positive("high_freq_factor")
        if low >= high:
            raise rope.error(f"low_freq_factor must be below high_freq_factor, not {low} and {high}")
        context = rope.positive("original_max_position_embeddings")
        return scale_llama3(frequencies, Llama3Scaling(rope.positive("factor"), low, high, context))
    return frequencies


def _section(fields: Fields) -> Fields:
    """The one that is stated; when both are, they must agree."""
    stated = [fields.section(key) for key in ("rope_parameters", "rope_scaling") if fields.has(key)]
    if len(stated) == 2 and not _named(stated[1]).items() <= _named(stated[0]).items():
        raise fields.error("rope_parameters and rope_scaling contradict each other")
    return stated[0] if stated else Fields(fields.path, {})


def _named(rope: Fields) -> dict[str, Any]:
    """What is stated, with the kind under its newer name."""
    values = {key: value for key, value in rope.values.items() if isinstance(value, (str, int, float))}
    kind = values.pop("type", None)
    return values if kind is None else {"rope_type": kind} | values


def _check(fields: Fields, rope: Fields, kind: str) -> None:
    if kind not in KINDS:
        raise rope.error(f"rope scaling {kind!r} is not supported (supported: {', '.join(KINDS)})")
    for source in (fields, rope):
        if source.positive("partial_rotary_factor", 1.0) != 1.0:
            raise source.error("rotating a part of each head (partial_rotary_factor) is not supported")
    for key, value in rope.values.items():
        if rope.path != fields.path and key not in COMMON | KINDS[kind] and value not in (None, False, 1, [], {}):
            raise rope.error(f"{key} = {value!r} is not supported with rope scaling {kind!r}")
