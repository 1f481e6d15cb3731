"""Phi 1.5 and 2: attention and MLP side by side behind one layer norm, biases everywhere; heads turn in part."""

from dataclasses import replace

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import OpKind
from polyfleet.models import names
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.llama import LLAMA
from polyfleet.models.recorder import Recorder
from polyfleet.models.starcoder2 import GELU_TANH

_LAYER = {"self_attn.dense": "o", "mlp.fc1": "up", "mlp.fc2": "down"}


def record(config: ModelConfig, model: Recorder) -> KernelGraph:
    """What both branches come to is added to what entered their norm."""
    rope, graph = model.rope(), model.graph
    x = model.embedding()
    for _ in model.layers():
        normed = model.norm(x, "attention_norm")
        x = graph.add(model.attention(normed, rope, bias=True, output_bias=True), x)
        x = graph.add(model.plain_mlp(normed, lambda inner: graph.unary(OpKind.GELU_TANH, inner), bias=True), x)
    return model.finish(x, bias=True)


def _read_folder(fields: Fields) -> ModelConfig:
    """Models whose heads have norms are refused."""
    check_activation(fields, GELU_TANH)
    sizes = read_sizes(fields, norm_eps=1e-5, partial=0.5, eps="layer_norm_eps")
    return ModelConfig(**sizes, attention_bias=True, mlp_bias=True, layer_norms=True)


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    return ModelConfig(**{**keys.sizes(), "attention_bias": True, "mlp_bias": True}, layer_norms=True)


PHI2 = replace(
    LLAMA,
    name="phi2",
    title="Phi 1.5 and 2",
    classes=("PhiForCausalLM",),
    model_types=("phi",),
    gguf=("phi2",),
    read_folder=_read_folder,
    read_gguf=_read_gguf,
    record=record,
    folder_names=replace(names.folder(_LAYER), names={**names.FOLDER, "model.final_layernorm": "norm"}),
    gguf_names=names.gguf(),
    notes="",
)
