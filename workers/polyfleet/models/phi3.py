"""Phi 3, 3.5 and 4: fused projections, LongRoPE, heads that may turn in part."""

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.models import names
from polyfleet.models.architecture import Architecture
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes, read_windows
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.gguf_keys import read_windows as gguf_windows
from polyfleet.models.recorder import Recorder


def record(config: ModelConfig, model: Recorder) -> KernelGraph:
    """Llama's layers, each with its window."""
    rope = model.rope()
    return model.pre_norm_decoder(lambda layer, x: model.attention(x, rope, window=config.window(layer)))


def _read_folder(fields: Fields) -> ModelConfig:
    check_activation(fields)
    sizes = read_sizes(fields, context_length=4096, norm_eps=1e-5, partial=1.0)
    return ModelConfig(**sizes, windows=read_windows(fields, sizes, lambda layer: True))


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    sizes = keys.sizes()
    return ModelConfig(**sizes, windows=gguf_windows(keys, sizes, lambda layer: True))


PHI3 = Architecture(
    name="phi3",
    title="Phi 3 and 4",
    classes=("Phi3ForCausalLM",),
    model_types=("phi3",),
    gguf=("phi3",),
    read_folder=_read_folder,
    read_gguf=_read_gguf,
    record=record,
    folder_names=names.folder({"self_attn.qkv_proj": "q k v", "mlp.gate_up_proj": "gate up"}),
    gguf_names=names.gguf({"ffn_up": "gate up"}),
    notes="LongRoPE: short factors hold where `context_length` is at most the original context, else long ones",
)
