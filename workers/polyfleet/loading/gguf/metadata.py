"""Which metadata of a GGUF file are understood. A key that could change the model's numbers or a text's tokens and is
not understood is an error, unless its value says that nothing is changed.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields

TOKENIZER = "tokenizer.ggml."
UNDERSTOOD: Mapping[str, tuple[str, ...]] = {  # what some tokenizer models read
    "bert": ("normalizer.lowercase", "normalizer.strip_accents", "add_space_prefix"),
    "t5": ("remove_extra_whitespaces", "add_space_prefix", "escape_whitespaces", "precompiled_charsmap"),
}
QUANTIZATION_VERSION = 2  # of block formats; it is raised when their meaning changes

# They describe training, or what only other architectures, scalings or poolings compute with.
HARMLESS = frozenset({
    "attention.layer_norm_epsilon", "rope.scaling.finetuned", "rope.scaling.original_context_length",
})  # fmt: skip


def check_file_metadata(fields: Fields) -> None:
    """Raise ModelFileError for a file that is no whole model of an architecture and of blocks that are known."""
    kind = fields.text("general.type", "model")
    if kind != "model":
        raise fields.error(f"general.type is {kind!r}: the file holds no model of its own (needed: 'model')")
    version = fields.count("general.quantization_version", QUANTIZATION_VERSION, minimum=0)
    if version != QUANTIZATION_VERSION:
        raise fields.error(
            f"general.quantization_version {version} is not supported (supported: {QUANTIZATION_VERSION})"
        )


def check_model_metadata(fields: Fields, config: ModelConfig) -> None:
    """Raise ModelFileError for the first key of the architecture that is not understood."""
    neutral, prefix = _neutral(config), f"{fields.text('general.architecture')}."
    for key, value in fields.values.items():
        name = key.removeprefix(prefix)
        if name == key or key in fields.read or name in HARMLESS:
            continue
        if name == "attention.sliding_window" and isinstance(value, int) and value >= config.context_length:
            continue  # as wide as the context: every position is seen
        if not _equals(value, neutral.get(name, (0, "", []))):
            raise fields.error(f"{key} = {_shown(value)} is not supported: it may change what the model computes")


def check_tokenizer_metadata(fields: Fields, model: str) -> None:
    """Raise ModelFileError for a key that changes a text's tokens in a way that is not supported."""
    sentencepiece = model == "llama"
    neutral: Mapping[str, Iterable[Any]] = {
        "remove_extra_whitespaces": (False,),
        "treat_whitespace_as_suffix": (False,),
        "escape_whitespaces": (sentencepiece,),
        "add_space_prefix": (False, sentencepiece),
        "precompiled_charsmap": ([], ""),
        "normalizer.lowercase": (False,),
        "normalizer.strip_accents": (False,),
        "suppress_tokens": ([],),
    }
    for name, values in neutral.items():
        key = TOKENIZER + name
        if name in UNDERSTOOD.get(model, ()):
            continue
        if fields.has(key) and not _equals(fields.values[key], values):
            raise fields.error(
                f"{key} = {_shown(fields.values[key])} is not supported with the tokenizer model {model!r}"
            )


def _neutral(config: ModelConfig) -> Mapping[str, Iterable[Any]]:
    """Values that change nothing, of keys whose neutral value is not just 0, false or empty."""
    return {
        "attention.causal": (True,),
        "attention.scale": (0, config.head_dim**-0.5),
        "attention.value_length": (config.head_dim,),
        "embedding_length_out": (config.hidden_size,),
        "embedding_scale": (0, 1),
        "logit_scale": (0, 1),
        "residual_scale": (0, 1),
        "rope.scaling.attn_factor": (0, 1),
        "rope.scaling.yarn_attn_factor": (0, 1),
        "rope.scaling.yarn_beta_fast": (32,),  # with no extrapolation, which is what 0 and -1 of `ext_factor` say
        "rope.scaling.yarn_beta_slow": (1,),
        "rope.scaling.yarn_ext_factor": (0, -1),
        "tensor_data_layout": ("Meta AI original pth",),  # rows of q and k as this loader takes them
    }


def _equals(value: Any, neutral: Iterable[Any]) -> bool:
    if isinstance(value, float):  # GGUF's have 32 bits
        return any(isinstance(each, (int, float)) and math.isclose(value, each, rel_tol=1e-6) for each in neutral)
    return any(value == each for each in neutral)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
