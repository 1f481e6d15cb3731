"""What config.json files of decoders state alike, read into what ModelConfig takes."""

from collections.abc import Callable, Iterable
from typing import Any

from polyfleet.models.fields import Fields
from polyfleet.models.folder_rope import DEFAULT_BASE, StatedRope, read_rope

MAX_HEAD_DIM = 4096
MAX_LAYERS = 4096
SILU = ("silu", "swish")
FULL, SLIDING = "full_attention", "sliding_attention"


def read_sizes(
    fields: Fields,
    *,
    head_dim: int = 0,
    context_length: int = 2048,
    norm_eps: float = 1e-6,
    tied: bool = False,
    partial: float = 0.0,
    base: float = DEFAULT_BASE,
    rope: StatedRope | None = None,
    eps: str = "rms_norm_eps",
) -> dict[str, Any]:
    """All of ModelConfig but biases and windows; the rest are an architecture's defaults. Raises ModelFileError.

    `head_dim` 0: hidden size by heads. `rope`: where the architecture read it itself. `eps`: what the file calls it.
    """
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    head_dim = fields.count("head_dim", head_dim or max(1, hidden // heads), maximum=MAX_HEAD_DIM)
    context_length = fields.count("max_position_embeddings", context_length)
    rope = rope or read_rope(fields, head_dim, partial=partial, base=base)
    return {
        "architecture": "",
        "name": "",
        "vocabulary_size": fields.count("vocab_size"),
        "hidden_size": hidden,
        "num_layers": fields.count("num_hidden_layers", maximum=MAX_LAYERS),
        "num_heads": heads,
        "num_kv_heads": fields.count("num_key_value_heads", heads),
        "head_dim": head_dim,
        "intermediate_size": fields.count("intermediate_size"),
        "norm_eps": fields.positive(eps, norm_eps),
        "inverse_frequencies": rope.frequencies,
        "context_length": rope.context_length or context_length,
        "tied_embeddings": fields.flag("tie_word_embeddings", tied),
        "rope_amplitude": rope.amplitude,
        "short_frequencies": rope.short,
        "short_context": rope.original_context,
    }


def check_head_norms(fields: Fields) -> None:
    """For architectures whose heads always have norms: a file that says otherwise is refused."""
    if not fields.flag("use_qk_norm", True):
        raise fields.error("use_qk_norm = false is not supported: heads have norms")


def check_activation(fields: Fields, known: tuple[str, ...] = SILU, key: str = "hidden_act") -> None:
    """Raise ModelFileError for another activation of the MLP."""
    activation = fields.text(key, known[0])
    if activation not in known:
        raise fields.error(f"the activation {activation!r} is not supported (supported: {known[0]})")


def read_windows(
    fields: Fields, sizes: dict[str, Any], local: Callable[[int], bool], *, default: int = 0
) -> tuple[int, ...]:
    """The window of each layer; `layer_types` says which have one, or else `local`. None at all where all see all.

    `default` holds where the file does not even say that there is no window.
    """
    sliding = read_sliding(fields, sizes["num_layers"], local)
    return spread(read_window(fields, default), sliding, sizes["context_length"])


def read_window(fields: Fields, default: int = 0) -> int:
    """The window of local layers, 0 where there is none; `default` where the file does not even say that."""
    return fields.count("sliding_window", 0 if "sliding_window" in fields.values else default, minimum=0)


def read_sliding(fields: Fields, layers: int, local: Callable[[int], bool]) -> tuple[bool, ...]:
    """Which layers are local, whether or not a window hides anything there: by `layer_types`, or else `local`."""
    if not fields.has("layer_types"):
        return tuple(local(layer) for layer in range(layers))
    kinds = fields.items("layer_types")
    if len(kinds) != layers or not set(map(str, kinds)) <= {FULL, SLIDING}:
        raise fields.error(f"layer_types must name {FULL} or {SLIDING} for each of {layers} layers")
    return tuple(kind == SLIDING for kind in kinds)


def read_upper_windows(fields: Fields, sizes: dict[str, Any]) -> tuple[int, ...]:
    """Windows of the layers from `max_window_layers` on, where `use_sliding_window` switches them on: Qwen's way."""
    first = fields.count("max_window_layers", 28, minimum=0)
    return read_switched_windows(fields, sizes, lambda layer: layer >= first)


def read_switched_windows(fields: Fields, sizes: dict[str, Any], local: Callable[[int], bool]) -> tuple[int, ...]:
    """Windows of the local layers where `use_sliding_window` switches them on."""
    windows = read_windows(fields, sizes, local, default=4096)
    return windows if fields.flag("use_sliding_window", False) else ()


def spread(window: int, sliding: Iterable[bool], context_length: int) -> tuple[int, ...]:
    """The window in the layers that have one; none at all where it is 0 or hides nothing."""
    each = tuple(window if local else 0 for local in sliding) if 0 < window < context_length else ()
    return each if any(each) else ()
