"""Hunyuan, dense: Llama with norms of heads of queries and keys behind their rotation."""

from dataclasses import replace

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.models import names
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import MAX_HEAD_DIM, check_activation, read_sizes
from polyfleet.models.folder_rope import DEFAULT_BASE, StatedRope, read_rope, rope_section
from polyfleet.models.llama import LLAMA
from polyfleet.models.recorder import Recorder
from polyfleet.models.rope import inverse_frequencies

# What published files state of other tasks and of what they have one of.
DESCRIBING = {"norm_type", "pool_type", "dense_list", "mask_init_id", "org_vocab_size", "cla_share_factor", "moe_topk"}
DESCRIBING |= {f"{part}_{end}_id" for part in ("text", "im", "video") for end in ("start", "end", "newline")}
DESCRIBING |= {"use_rotary_pos_emb", "attention_head_dim", "num_experts"}


def record(config: ModelConfig, model: Recorder) -> KernelGraph:
    """Llama's layers with norms of heads."""
    rope, bias = model.rope(), config.attention_bias

    def prepare(x: int, name: str) -> int:
        return model.norm(model.graph.rope(x, rope), f"{name}_norm", config.head_dim)

    return model.pre_norm_decoder(
        lambda layer, x: model.attention(x, rope, bias=bias, output_bias=bias, prepare=prepare)
    )


def _read_folder(fields: Fields) -> ModelConfig:
    check_activation(fields)
    if not fields.flag("use_qk_norm", True):
        raise fields.error("use_qk_norm = false is not supported: heads have norms")
    fields.read.update(DESCRIBING)
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    head_dim = fields.count("head_dim", max(1, hidden // heads), maximum=MAX_HEAD_DIM)
    sizes = read_sizes(fields, norm_eps=1e-5, rope=_read_rope(fields, head_dim))
    return ModelConfig(**sizes, attention_bias=fields.flag("attention_bias", False))


def _read_rope(fields: Fields, head_dim: int) -> StatedRope:
    """`dynamic` with an `alpha` is a larger base, whatever the length."""
    section = rope_section(fields)
    kind = section.text("rope_type", section.text("type", "default"))
    if kind != "dynamic" or not section.has("alpha") or head_dim < 4:
        return read_rope(fields, head_dim)
    base = (section if section.has("rope_theta") else fields).positive("rope_theta", DEFAULT_BASE)
    stretched = base * section.positive("alpha") ** (head_dim / (head_dim - 2))
    return StatedRope(inverse_frequencies(head_dim, stretched))


HUNYUAN = replace(
    LLAMA,
    name="hunyuan",
    title="Hunyuan",
    classes=("HunYuanDenseV1ForCausalLM",),
    model_types=("hunyuan_v1_dense",),
    gguf=("hunyuan-dense",),
    read_folder=_read_folder,
    record=record,
    folder_names=names.folder({"self_attn.query_layernorm": "q_norm", "self_attn.key_layernorm": "k_norm"}),
    gguf_names=names.gguf(),
    notes="dense models",
)
