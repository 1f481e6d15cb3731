"""InternLM 3: Llama with other names of its biases."""

from dataclasses import replace

from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes
from polyfleet.models.llama import LLAMA


def _read_folder(fields: Fields) -> ModelConfig:
    check_activation(fields)
    names = "qkv_bias", "attention_bias", "bias", "mlp_bias"  # of its makers, and transformers'
    stated = {name: fields.flag(name, False) for name in names}
    bias = stated["qkv_bias"] or stated["attention_bias"]
    if bias != (stated["bias"] or stated["mlp_bias"]):
        raise fields.error("qkv_bias and bias must be the same: its output projections have the biases of both")
    sizes = read_sizes(fields, head_dim=128, context_length=32768, norm_eps=1e-5)
    return ModelConfig(**sizes, attention_bias=bias, mlp_bias=bias)


INTERNLM3 = replace(
    LLAMA,
    name="internlm3",
    title="InternLM 3",
    classes=("InternLM3ForCausalLM",),
    model_types=("internlm3",),
    written_as=("LlamaForCausalLM",),
    gguf=(),
    read_folder=_read_folder,
    notes="its GGUF files are Llama's",
)
