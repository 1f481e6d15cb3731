"""MiniCPM 3: MiniCPM's scales around DeepSeek's latent attention, one MLP in each layer."""

from dataclasses import dataclass, replace

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import Route
from polyfleet.models import names
from polyfleet.models.config import ModelConfig
from polyfleet.models.deepseek import DEEPSEEK3, LATENT_LAYER
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes
from polyfleet.models.folder_rope import read_rope
from polyfleet.models.latent import LatentConfig, attention
from polyfleet.models.minicpm import Scales, read_scales, scaled_decoder
from polyfleet.models.recorder import Recorder


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniCpm3Config(LatentConfig):
    """One with scales."""

    scales: Scales


def record(config: MiniCpm3Config, model: Recorder) -> KernelGraph:
    """Llama's layers with latent attention, scaled."""
    return scaled_decoder(config.scales, model, lambda layer, x: attention(config, model, x), model.gated_mlp)


def _read_folder(fields: Fields) -> ModelConfig:
    check_activation(fields)
    turning, plain = fields.count("qk_rope_head_dim", 32), fields.count("qk_nope_head_dim", 64)
    sizes = read_sizes(fields, norm_eps=1e-5, tied=True, rope=read_rope(fields, turning))
    fields.count("head_dim", turning), fields.count("qk_head_dim", turning + plain)
    layers, hidden = sizes["num_layers"], sizes["hidden_size"]
    return MiniCpm3Config(
        **{**sizes, "head_dim": turning},
        attention_bias=fields.flag("attention_bias", False),
        scales=read_scales(fields, layers, hidden, embedding=12.0, depth=1.4, base=256.0),
        route=Route(1, 1),
        expert_size=1,
        dense=tuple(range(layers)),
        latent_width=fields.count("kv_lora_rank", 256),
        query_rank=fields.count("q_lora_rank", 768 if "q_lora_rank" not in fields.values else 0, minimum=0),
        plain_width=plain,
        value_width=fields.count("v_head_dim", max(1, hidden // sizes["num_heads"])),
        attention_scale=(plain + turning) ** -0.5,
    )


MINICPM3 = replace(
    DEEPSEEK3,
    name="minicpm3",
    title="MiniCPM 3",
    classes=("MiniCPM3ForCausalLM",),
    model_types=("minicpm3",),
    gguf=(),
    read_folder=_read_folder,
    record=record,
    folder_names=names.folder(LATENT_LAYER),
    sparse=False,
    notes="the folder's own code is never executed",
)
