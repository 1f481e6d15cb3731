"""Rotary position embeddings as a config.json states them."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from polyfleet.models.fields import Fields
from polyfleet.models.rope import (
    Llama3Scaling,
    YarnScaling,
    inverse_frequencies,
    longrope_amplitude,
    scale_llama3,
    scale_yarn,
    yarn_amplitude,
)

DEFAULT_BASE = 10000.0
SHARPENING = "llama_4_scaling_beta"  # by which queries grow behind the original context
COMMON = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor", "original_max_position_embeddings"})


@dataclass(frozen=True, slots=True)
class StatedRope:
    """What a rope section comes to. `short` frequencies hold up to `original_context`, where there are some."""

    frequencies: tuple[float, ...]
    amplitude: float = 1.0
    context_length: int = 0  # as the scaling stretches it; 0: as the file states it elsewhere
    short: tuple[float, ...] = ()
    original_context: int = 0


@dataclass(frozen=True, slots=True)
class _Given:
    """What all kinds read."""

    fields: Fields
    rope: Fields
    base: float
    frequencies: tuple[float, ...]

    def original_context(self) -> int:
        """Of the training before the context was stretched."""
        key = "original_max_position_embeddings"
        source = self.rope if self.rope.has(key) else self.fields
        return int(source.positive(key, float(self.fields.count("max_position_embeddings"))))


def read_rope(
    fields: Fields, head_dim: int, *, partial: float = 0.0, base: float = DEFAULT_BASE, section: Fields | None = None
) -> StatedRope:
    """The rope that is stated; raises ModelFileError for one that is not understood.

    Newer files state it in `rope_parameters`, older ones in `rope_theta` and `rope_scaling`; `section` is one of
    several that a file has. `partial` is the share of each head that turns where nothing is said; 0:
    all of it turns, always.
    """
    rope = rope_section(fields) if section is None else section
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind not in KINDS:
        raise rope.error(f"rope scaling {kind!r} is not supported (supported: {', '.join(KINDS)})")
    _check(fields, rope, kind)
    base = _stated(fields, rope, "rope_theta", base)
    key = "partial_rotary_factor"
    share = _stated(fields, rope, key, partial or 1.0)
    if share != 1 and not partial:
        raise fields.error(f"rotating a part of each head ({key}) is not supported by this architecture")
    width = int(head_dim * share)
    if partial and (share > 1 or width % 2 or not width):
        raise fields.error(f"{key} = {share:g} does not turn an even number of a head's {head_dim} dimensions")
    reader, _ = KINDS[kind]
    return reader(_Given(fields, rope, base, inverse_frequencies(width, base)))


def _stated(fields: Fields, rope: Fields, key: str, default: float) -> float:
    """A number that stands in the section or beside it; newer files state it in both."""
    found = [each.positive(key) for each in (rope, fields) if each.has(key)]
    if len(set(found)) == 2:
        raise rope.error(f"{key} = {found[0]:g} contradicts the {found[1]:g} that stands beside the section")
    return found[0] if found else default


def _plain(given: _Given) -> StatedRope:
    return StatedRope(given.frequencies)


def _dynamic(given: _Given) -> StatedRope:
    """It changes nothing up to the stated context, behind which nothing is served."""
    given.rope.positive("factor")
    return StatedRope(given.frequencies)


def _linear(given: _Given) -> StatedRope:
    factor = given.rope.positive("factor")
    return StatedRope(tuple(each / factor for each in given.frequencies))


def _llama3(given: _Given) -> StatedRope:
    rope = given.rope
    low, high = rope.positive("low_freq_factor"), rope.positive("high_freq_factor")
    if low > high:
        raise rope.error(f"low_freq_factor must not be over high_freq_factor, as {low} and {high} are")
    context = rope.positive("original_max_position_embeddings")
    return StatedRope(scale_llama3(given.frequencies, Llama3Scaling(rope.positive("factor"), low, high, context)))


def _yarn(given: _Given) -> StatedRope:
    rope, context = given.rope, given.original_context()
    stated = given.fields.count("max_position_embeddings")
    factor = rope.positive("factor", stated / context)
    betas = rope.positive("beta_fast", 32.0), rope.positive("beta_slow", 1.0)
    scaling = YarnScaling(factor, context, *betas, rope.flag("truncate", True))
    amplitude = yarn_amplitude(factor)
    if rope.values.get("mscale") and rope.values.get("mscale_all_dim"):  # 0 is none, as in transformers
        scales = rope.positive("mscale"), rope.positive("mscale_all_dim")
        amplitude = yarn_amplitude(factor, scales[0]) / yarn_amplitude(factor, scales[1])
    amplitude = rope.positive("attention_factor", amplitude)
    stretched = max(stated, math.floor(context * factor))
    if rope.values.get(SHARPENING):  # queries grow with their position from there on, and nothing is served behind
        rope.positive(SHARPENING)
        stretched = context
    return StatedRope(scale_yarn(given.frequencies, given.base, scaling), amplitude, stretched)


def _longrope(given: _Given) -> StatedRope:
    rope, context = given.rope, given.original_context()
    stated = given.fields.count("max_position_embeddings")
    factor = stated / context if given.fields.has("original_max_position_embeddings") else 0.0
    factor = factor or rope.positive("factor", stated / context)
    amplitude = rope.positive("attention_factor", longrope_amplitude(factor, context))
    long, short = (_divided(rope, key, given.frequencies) for key in ("long_factor", "short_factor"))
    if stated <= context:
        return StatedRope(short, amplitude)
    return StatedRope(long, amplitude, 0, short, context)


def _divided(rope: Fields, key: str, frequencies: tuple[float, ...]) -> tuple[float, ...]:
    factors = rope.items(key)
    numbers = all(isinstance(each, (int, float)) and not isinstance(each, bool) and each > 0 for each in factors)
    if not numbers or len(factors) != len(frequencies):
        raise rope.error(f"{key} must hold {len(frequencies)} numbers over 0")
    return tuple(frequency / factor for frequency, factor in zip(frequencies, factors, strict=True))


KINDS: Mapping[str, tuple[Callable[[_Given], StatedRope], frozenset[str]]] = {  # kind -> reader, what it reads besides
    "default": (_plain, frozenset()),
    "linear": (_linear, frozenset({"factor"})),
    "dynamic": (_dynamic, frozenset({"factor"})),
    "yarn": (
        _yarn,
        frozenset(
            {
                *("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor", "truncate"),
                SHARPENING,
            }
        ),
    ),
    "longrope": (_longrope, frozenset({"factor", "long_factor", "short_factor", "attention_factor"})),
    "su": (_longrope, frozenset({"factor", "long_factor", "short_factor", "attention_factor"})),  # its older name
    "llama3": (_llama3, frozenset({"factor", "low_freq_factor", "high_freq_factor"})),
}


def rope_section(fields: Fields) -> Fields:
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
    """Raise ModelFileError for a key of the section that its kind does not read."""
    for key, value in rope.values.items():
        changes = value is True or value not in (None, False, 1, [], {})
        if rope.path != fields.path and key not in COMMON | KINDS[kind][1] and changes:
            raise rope.error(f"{key} = {value!r} is not supported with rope scaling {kind!r}")
