"""config.json and generation_config.json of a Hugging Face folder: read, checked, put into a ModelConfig."""

from pathlib import Path

from polyfleet.loading.end_tokens import union
from polyfleet.loading.fields import Fields, read_json, read_optional_json
from polyfleet.loading.folder_fields import check_fields
from polyfleet.loading.folder_rope import read_frequencies
from polyfleet.loading.shapes import MAX_HEAD_DIM
from polyfleet.models.config import ModelConfig

SUPPORTED = "LlamaForCausalLM"


def read_config(folder: Path) -> ModelConfig:
    """The model's configuration; raises ModelFileError."""
    fields = read_json(folder / "config.json")
    _check_supported(fields)
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    head_dim = fields.count("head_dim", max(1, hidden // heads), maximum=MAX_HEAD_DIM)
    config = ModelConfig(
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
        inverse_frequencies=read_frequencies(fields, head_dim),
        context_length=fields.count("max_position_embeddings", 2048),
        tied_embeddings=fields.flag("tie_word_embeddings", False),
        attention_bias=fields.flag("attention_bias", False),
        mlp_bias=fields.flag("mlp_bias", False),
        end_token_ids=_end_tokens(folder, fields),
    )
    check_fields(fields, config)
    return config


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
    if activation not in ("silu", "swish"):
        raise fields.error(f"the activation {activation!r} is not supported (supported: silu)")


def _end_tokens(folder: Path, fields: Fields) -> tuple[int, ...]:
    """Of generation_config.json and config.json."""
    generation = read_optional_json(folder / "generation_config.json")
    return union(generation.token_ids("eos_token_id"), fields.token_ids("eos_token_id"))
