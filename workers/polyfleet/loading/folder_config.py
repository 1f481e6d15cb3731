"""config.json and generation_config.json of a Hugging Face folder: read, checked, put into a ModelConfig."""

import json
from pathlib import Path

from polyfleet.loading.end_tokens import union
from polyfleet.loading.fields import Fields
from polyfleet.loading.model import ModelFileError
from polyfleet.loading.rope import Llama3Scaling, inverse_frequencies, scale_llama3
from polyfleet.loading.shapes import MAX_HEAD_DIM
from polyfleet.models.config import ModelConfig

SUPPORTED = "LlamaForCausalLM"
DEFAULT_ROPE_BASE = 10000.0


def read_json(path: Path) -> Fields:
    """A JSON object from a file; raises ModelFileError."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFileError(f"{path}: can't be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: is not valid JSON ({error})") from None
    if not isinstance(values, dict):
        raise ModelFileError(f"{path}: must hold a JSON object")
    return Fields(str(path), values)


def read_optional_json(path: Path) -> Fields:
    """As `read_json`, without any field when there is no such file."""
    return read_json(path) if path.is_file() else Fields(str(path), {})


def read_config(folder: Path) -> ModelConfig:
    """The model's configuration; raises ModelFileError."""
    fields = read_json(folder / "config.json")
    _check_supported(fields)
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    head_dim = fields.count("head_dim", max(1, hidden // heads), maximum=MAX_HEAD_DIM)
    return ModelConfig(
        architecture="llama",
        name=folder.resolve().name,
        vocabulary_size=fields.count("vocab_size"),
        hidden_size=hidden,
        num_layers=fields.count("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=fields.count("num_key_value_heads", heads),
        head_dim=head_dim,
        intermediate_size=fields.count("intermediate_size"),
        norm_eps=fields.positive("rms_norm_eps", 1e-6),
        inverse_frequencies=_frequencies(fields, head_dim),
        context_length=fields.count("max_position_embeddings", 2048),
        tied_embeddings=fields.flag("tie_word_embeddings", False),
        attention_bias=fields.flag("attention_bias", False),
        mlp_bias=fields.flag("mlp_bias", False),
        end_token_ids=_end_tokens(folder, fields),
    )


def _check_supported(fields: Fields) -> None:
    names = fields.items("architectures") if fields.has("architectures") else []
    kind = fields.text("model_type", "llama")
    if kind != "llama" or (names and SUPPORTED not in names):
        found = ", ".join(map(str, names)) or kind
        raise fields.error(f"the architecture {found} is not supported (supported: {SUPPORTED})")
    if fields.has("quantization_config"):
        method = fields.section("quantization_config").values.get("quant_method", "unnamed")
        raise fields.error(f"the quantisation {method!r} is not supported in folders (use a GGUF file)")
    activation = fields.text("hidden_act", "silu")
    if activation != "silu":
        raise fields.error(f"the activation {activation!r} is not supported (supported: silu)")
    if fields.positive("partial_rotary_factor", 1.0) != 1.0:
        raise fields.error("rotating a part of each head (partial_rotary_factor) is not supported")


def _frequencies(fields: Fields, head_dim: int) -> tuple[float, ...]:
    """Rope as newer files state it (rope_parameters) or older ones (rope_theta and rope_scaling)."""
    key = next((key for key in ("rope_parameters", "rope_scaling") if fields.has(key)), None)
    rope = fields.section(key) if key else Fields(fields.path, {})
    base = rope if rope.has("rope_theta") else fields
    frequencies = inverse_frequencies(head_dim, base.positive("rope_theta", DEFAULT_ROPE_BASE))
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind == "linear":
        factor = rope.positive("factor")
        return tuple(frequency / factor for frequency in frequencies)
    if kind == "llama3":
        low, high = rope.positive("low_freq_factor"), rope.positive("high_freq_factor")
        if low >= high:
            raise rope.error(f"low_freq_factor must be below high_freq_factor, not {low} and {high}")
        context = rope.positive("original_max_position_embeddings")
        return scale_llama3(frequencies, Llama3Scaling(rope.positive("factor"), low, high, context))
    if kind != "default":
        raise rope.error(f"rope scaling {kind!r} is not supported (supported: default, linear, llama3)")
    return frequencies


def _end_tokens(folder: Path, fields: Fields) -> tuple[int, ...]:
    """Of generation_config.json and config.json."""
    generation = read_optional_json(folder / "generation_config.json")
    return union(generation.token_ids("eos_token_id"), fields.token_ids("eos_token_id"))
