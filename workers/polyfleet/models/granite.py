"""Granite 3, dense: Llama with scales of the embedding, of attention's products, of each branch and of the logits."""

from dataclasses import replace

from polyfleet.models import names
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.minicpm import MINICPM, MiniCpmConfig


def _read_folder(fields: Fields) -> ModelConfig:
    check_activation(fields)
    return MiniCpmConfig(
        **read_sizes(fields),
        attention_bias=fields.flag("attention_bias", False),
        mlp_bias=fields.flag("mlp_bias", False),
        embedding_scale=fields.positive("embedding_multiplier", 1.0),
        attention_scale=fields.positive("attention_multiplier", 1.0),
        residual_scale=fields.positive("residual_multiplier", 1.0),
        head_scale=1 / fields.positive("logits_scaling", 1.0),
    )


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    sizes, fields = keys.sizes(), keys.fields
    return MiniCpmConfig(
        **sizes,
        embedding_scale=fields.positive("embedding_scale", 1.0),
        attention_scale=fields.positive("attention.scale", sizes["head_dim"] ** -0.5),
        residual_scale=fields.positive("residual_scale", 1.0),
        head_scale=1 / fields.positive("logit_scale", 1.0),
    )


GRANITE = replace(
    MINICPM,
    name="granite",
    title="Granite 3",
    classes=("GraniteForCausalLM",),
    model_types=("granite",),
    gguf=("granite",),
    read_folder=_read_folder,
    read_gguf=_read_gguf,
    folder_names=names.folder(),
    notes="dense models",
)
