"""Llama 2 and 3, SmolLM 2, and every folder that is Llama by another name; Helium, whose pairs lie otherwise."""

from dataclasses import replace

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.models import names
from polyfleet.models.architecture import Architecture
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.recorder import Recorder


def record(config: ModelConfig, model: Recorder) -> KernelGraph:
    """Grouped-query attention, gated MLP."""
    rope, bias = model.rope(), config.attention_bias
    return model.pre_norm_decoder(lambda layer, x: model.attention(x, rope, bias=bias, output_bias=bias))


def _read_folder(fields: Fields) -> ModelConfig:
    check_activation(fields)
    biases = fields.flag("attention_bias", False), fields.flag("mlp_bias", False)
    return ModelConfig(**read_sizes(fields), attention_bias=biases[0], mlp_bias=biases[1])


def _read_helium(fields: Fields) -> ModelConfig:
    """Pairs that turn are neighbours."""
    check_activation(fields)
    sizes = read_sizes(fields, head_dim=128, context_length=4096, norm_eps=1e-8, base=100_000.0)
    return ModelConfig(**sizes, mlp_bias=fields.flag("mlp_bias", False))


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    return ModelConfig(**keys.sizes())


LLAMA = Architecture(
    name="llama",
    title="Llama",
    classes=(
        *("LlamaForCausalLM", "LLaMAForCausalLM", "YiForCausalLM", "AquilaForCausalLM", "AquilaModel"),
        *("XverseForCausalLM", "SmolLMForCausalLM", "IQuestCoderForCausalLM", "LlamaModel"),
    ),
    model_types=("llama", "yi", "aquila", "xverse", "iquestcoder"),
    gguf=("llama",),
    read_folder=_read_folder,
    read_gguf=_read_gguf,
    record=record,
    folder_names=names.folder(),
    gguf_names=names.gguf(interleaved=True),
    notes="Llama 2 and 3, SmolLM 2, Yi, Aquila 2, XVERSE, IQuest-Coder and others whose layers are Llama's",
)
HELIUM = replace(
    LLAMA,
    name="helium",
    title="Helium",
    classes=("HeliumForCausalLM",),
    model_types=("helium",),
    gguf=(),
    read_folder=_read_helium,
    folder_names=names.folder(interleaved=True),
    notes="",
)
