"""Seed-OSS: Llama with biases of queries, keys and values, and of their output only where it is said."""

from dataclasses import dataclass, replace

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.models import names
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.llama import LLAMA
from polyfleet.models.recorder import Recorder


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedConfig(ModelConfig):
    """`output_bias`: of attention."""

    output_bias: bool


def record(config: SeedConfig, model: Recorder) -> KernelGraph:
    """Llama's layers."""
    rope, bias = model.rope(), config.attention_bias
    return model.pre_norm_decoder(lambda layer, x: model.attention(x, rope, bias=bias, output_bias=config.output_bias))


def _read_folder(fields: Fields) -> ModelConfig:
    check_activation(fields)
    return SeedConfig(
        **read_sizes(fields, head_dim=128, context_length=524288),
        attention_bias=fields.flag("attention_bias", True),
        output_bias=fields.flag("attention_out_bias", False),
        mlp_bias=fields.flag("mlp_bias", False),
    )


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    return SeedConfig(**keys.sizes(), output_bias=keys.has("blk.0.attn_output.bias"))


SEED_OSS = replace(
    LLAMA,
    name="seed_oss",
    title="Seed-OSS",
    classes=("SeedOssForCausalLM",),
    model_types=("seed_oss",),
    gguf=("seed_oss",),
    read_folder=_read_folder,
    read_gguf=_read_gguf,
    record=record,
    gguf_names=names.gguf({"post_attention_norm": "mlp_norm"}),
    notes="",
)
