"""GLM 4: biased queries, keys and values, half of each head turns, and GLM 4 0414 has norms behind its branches too."""

from dataclasses import replace

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.models import names
from polyfleet.models.architecture import Architecture
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.recorder import Recorder


def _record_glm(config: ModelConfig, model: Recorder) -> KernelGraph:
    rope, bias = model.rope(), config.attention_bias
    return model.pre_norm_decoder(lambda layer, x: model.attention(x, rope, bias=bias))


def record(config: ModelConfig, model: Recorder) -> KernelGraph:
    """Each branch between two norms."""
    graph, rope = model.graph, model.rope()
    x = model.embedding()
    for _ in model.layers():
        attended = model.attention(model.norm(x, "attention_norm"), rope, bias=config.attention_bias)
        x = graph.add(model.norm(attended, "attention_post_norm"), x)
        x = graph.add(model.norm(model.gated_mlp(model.norm(x, "mlp_norm")), "mlp_post_norm"), x)
    return model.finish(x)


def _read_folder(fields: Fields) -> ModelConfig:
    check_activation(fields)
    sizes = read_sizes(fields, head_dim=128, context_length=131072, norm_eps=1.5625e-7, partial=0.5)
    return ModelConfig(**sizes, attention_bias=fields.flag("attention_bias", True))


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    return ModelConfig(**keys.sizes())


_FUSED = {"mlp.gate_up_proj": "gate up"}
_POST_NORMS = {"post_self_attn_layernorm": "attention_post_norm", "post_mlp_layernorm": "mlp_post_norm"}
_GGUF_POST_NORMS = {"post_attention_norm": "attention_post_norm", "post_ffw_norm": "mlp_post_norm"}

GLM4 = Architecture(
    name="glm4",
    title="GLM 4 0414",
    classes=("Glm4ForCausalLM",),
    model_types=("glm4",),
    gguf=("glm4",),
    read_folder=_read_folder,
    read_gguf=_read_gguf,
    record=record,
    folder_names=names.folder({**_FUSED, **_POST_NORMS}, interleaved=True),
    gguf_names=names.gguf({**_GGUF_POST_NORMS, "ffn_up": "gate up"}, interleaved=True),
)
GLM = replace(
    GLM4,
    name="glm",
    title="GLM 4",
    classes=("GlmForCausalLM",),
    model_types=("glm",),
    gguf=("chatglm",),
    record=_record_glm,
    folder_names=names.folder(_FUSED, interleaved=True),
    gguf_names=names.gguf({"ffn_up": "gate up"}, interleaved=True),
)
