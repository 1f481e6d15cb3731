"""What GGUF files of decoders state alike, under their architecture's name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from polyfleet.models.fields import Fields
from polyfleet.models.folder import MAX_HEAD_DIM, MAX_LAYERS, spread
from polyfleet.models.rope import YarnScaling, inverse_frequencies, scale_yarn, yarn_amplitude

MAX_ROPE_FACTOR = 2.0**20
ROPE_FREQS = "rope_freqs.weight"  # divisors of the inverse frequencies: how GGUF states Llama 3's scaling
ROPE_LONG, ROPE_SHORT = "rope_factors_long.weight", "rope_factors_short.weight"  # the same of LongRoPE


class Sized(Protocol):
    """A tensor in a file."""

    @property
    def rows(self) -> int:
        """All its dimensions but the last, together."""
        ...


@dataclass(frozen=True, slots=True)
class GgufKeys:
    """A file's metadata and tensors as an architecture reads them; `fields` leave the architecture's prefix out."""

    fields: Fields
    tensors: Mapping[str, Sized]
    vocabulary_size: int
    numbers: Callable[[str], list[float]]  # a small tensor's

    def has(self, tensor: str) -> bool:
        """Whether the file holds a tensor."""
        return tensor in self.tensors

    def rows(self, tensor: str) -> int:
        """Of a tensor; 0 where the file has none."""
        return self.tensors[tensor].rows if tensor in self.tensors else 0

    def sizes(self) -> dict[str, Any]:
        """All of ModelConfig but windows. Raises ModelFileError."""
        fields = self.fields
        hidden, heads = fields.count("embedding_length"), fields.count("attention.head_count")
        head_dim = fields.count("attention.key_length", max(1, hidden // heads), maximum=MAX_HEAD_DIM)
        stated = fields.count("vocab_size", self.vocabulary_size or None)
        if 0 < self.vocabulary_size < stated:
            raise fields.error(f"vocab_size is {stated}, but the embedding has {self.vocabulary_size} rows")
        root, around = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
        inner, experts = "feed_forward_length", "expert_feed_forward_length"  # all that some mixtures state
        return {
            "architecture": "",
            "name": "",
            "vocabulary_size": self.vocabulary_size or stated,
            "hidden_size": hidden,
            "num_layers": fields.count("block_count", maximum=MAX_LAYERS),
            "num_heads": heads,
            "num_kv_heads": fields.count("attention.head_count_kv", heads),
            "head_dim": head_dim,
            "intermediate_size": fields.count(inner if fields.has(inner) or not fields.has(experts) else experts),
            "norm_eps": fields.positive(around if fields.has(around) and not fields.has(root) else root),
            "context_length": fields.count("context_length"),
            "tied_embeddings": not self.has("output.weight"),
            "attention_bias": self.has("blk.0.attn_q.bias") or self.has("blk.0.attn_qkv.bias"),
            "mlp_bias": self.has("blk.0.ffn_gate.bias"),
            **self._rope(head_dim),
        }

    def _rope(self, head_dim: int) -> dict[str, Any]:
        fields = self.fields
        width = fields.count("rope.dimension_count", head_dim)
        if width > head_dim or width % 2:
            raise fields.error(f"rotating {width} of {head_dim} dimensions of a head is not supported")
        base = fields.positive("rope.freq_base", 10000.0)
        frequencies = inverse_frequencies(width, base)
        kind = fields.text("rope.scaling.type", "linear")
        if kind not in ("none", "linear", "yarn", "longrope"):
            raise fields.error(
                f"rope scaling {kind!r} is not supported (supported: none, linear, yarn, longrope, rope_freqs)"
            )
        if kind == "yarn":
            return self._yarn(frequencies, base)
        if self.has(ROPE_LONG) or self.has(ROPE_SHORT):
            return self._longrope(frequencies)
        stated = self._linear_factor()
        factor = 1.0 if kind == "none" else stated
        frequencies = tuple(each / factor for each in frequencies)
        return {"inverse_frequencies": self._divided(ROPE_FREQS, frequencies) if self.has(ROPE_FREQS) else frequencies}

    def _linear_factor(self) -> float:
        """What positions are divided by: stated under a new key or an old one; 0 says: as it is."""
        keys = ("rope.scaling.factor", "rope.scale_linear")
        stated = [self.fields.number(key, 0, MAX_ROPE_FACTOR) for key in keys if self.fields.has(key)]
        return (stated[0] if stated else 1.0) or 1.0

    def _yarn(self, frequencies: tuple[float, ...], base: float) -> dict[str, Any]:
        fields, factor = self.fields, self._linear_factor()
        context = fields.positive("rope.scaling.original_context_length", float(fields.count("context_length")))
        betas = (
            fields.positive("rope.scaling.yarn_beta_fast", 32.0),
            fields.positive("rope.scaling.yarn_beta_slow", 1.0),
        )
        amplitude = yarn_amplitude(factor) * fields.positive("rope.scaling.attn_factor", 1.0)
        frequencies = scale_yarn(frequencies, base, YarnScaling(factor, context, *betas))
        return {"inverse_frequencies": frequencies, "rope_amplitude": amplitude}

    def _longrope(self, frequencies: tuple[float, ...]) -> dict[str, Any]:
        fields, context = self.fields, self.fields.count("context_length")
        original = fields.count("rope.scaling.original_context_length", context)
        long, short = (self._divided(name, frequencies) for name in (ROPE_LONG, ROPE_SHORT))
        amplitude = {"rope_amplitude": fields.positive("rope.scaling.attn_factor", 1.0)}
        if context <= original:
            return {"inverse_frequencies": short, **amplitude}
        return {"inverse_frequencies": long, "short_frequencies": short, "short_context": original, **amplitude}

    def _divided(self, name: str, frequencies: tuple[float, ...]) -> tuple[float, ...]:
        factors = self.numbers(name)
        if len(factors) != len(frequencies) or not all(factor > 0 for factor in factors):
            raise self.fields.error(f"tensor {name!r} must hold {len(frequencies)} numbers over 0")
        return tuple(frequency / factor for frequency, factor in zip(frequencies, factors, strict=True))


def take_drafts(keys: GgufKeys, sizes: dict[str, Any]) -> int:
    """How many of the last layers only draft; `sizes` has the others afterwards."""
    drafts = keys.fields.count("nextn_predict_layers", 0, minimum=0)
    sizes["num_layers"] -= min(drafts, sizes["num_layers"] - 1)
    return drafts


def read_windows(keys: GgufKeys, sizes: dict[str, Any], local: Callable[[int], bool]) -> tuple[int, ...]:
    """The window of each layer; the file's own pattern says which have one, or else `local`."""
    sliding = read_sliding(keys, sizes["num_layers"], local)
    return spread(read_window(keys), sliding, sizes["context_length"])


def read_window(keys: GgufKeys, default: int = 0) -> int:
    """The window of local layers, 0 where there is none; `default` where the file does not say."""
    return keys.fields.count("attention.sliding_window", default, minimum=0)


def read_sliding(keys: GgufKeys, layers: int, local: Callable[[int], bool]) -> tuple[bool, ...]:
    """Which layers are local, whether or not a window hides anything there."""
    fields, pattern = keys.fields, "attention.sliding_window_pattern"
    if isinstance(fields.values.get(fields.prefix + pattern), list):
        return tuple(bool(each) for each in (fields.items(pattern) * layers)[:layers])
    if fields.has(pattern):
        every = fields.count(pattern)
        return tuple((layer + 1) % every != 0 for layer in range(layers))
    return tuple(local(layer) for layer in range(layers))
