"""Falcon: attention and MLP side by side behind one norm or one each, or one behind the other; queries share keys."""

from dataclasses import dataclass, replace

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import OpKind
from polyfleet.models import names
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.llama import LLAMA
from polyfleet.models.recorder import Recorder

IDLE = ("multi_query", "parallel_attn", "num_kv_heads", "ff_factor")  # where another one says it


@dataclass(frozen=True, slots=True, kw_only=True)
class FalconConfig(ModelConfig):
    """`parallel`: whether the MLP stands beside attention. `own_norms`: whether each of both has a norm then."""

    parallel: bool
    own_norms: bool


def record(config: FalconConfig, model: Recorder) -> KernelGraph:
    """Of two norms side by side the MLP's has the name of the only one, as in GGUF files."""
    graph, rope, bias = model.graph, model.rope(), config.attention_bias
    x = model.embedding()
    for _ in model.layers():
        normed = model.norm(x, "attention_norm")
        seen = model.norm(x, "attention_norm_2") if config.own_norms else normed
        after = graph.add(model.attention(seen, rope, bias=bias, output_bias=bias), x)
        inner = normed if config.parallel else model.norm(after, "mlp_norm")
        x = graph.add(model.plain_mlp(inner, lambda y: graph.unary(OpKind.GELU, y), bias=bias), after)
    return model.finish(x)


def _read_folder(fields: Fields) -> ModelConfig:
    check_activation(fields, ("gelu",), "activation")
    if fields.flag("alibi", False):
        raise fields.error("alibi = true is not supported: positions must turn heads")
    newer, heads = fields.flag("new_decoder_architecture", False), fields.count("num_attention_heads", 71)
    shared = not newer and fields.flag("multi_query", True)
    norms = fields.count("num_ln_in_parallel_attn", 2 if newer else 1)
    fields.read.update(IDLE)
    stated = {
        "num_key_value_heads": 1 if shared else fields.count("num_kv_heads", heads),
        "intermediate_size": fields.count("ffn_hidden_size", 4 * fields.count("hidden_size")),
    }
    parallel = newer or fields.flag("parallel_attn", True)
    if norms > 2 or (norms == 2 and not newer):
        raise fields.error(f"num_ln_in_parallel_attn = {norms} is not supported by this architecture: 1 is")
    sizes = read_sizes(
        replace(fields, values={**fields.values, **stated}), norm_eps=1e-5, tied=True, eps="layer_norm_epsilon"
    )
    bias = fields.flag("bias", False)
    return FalconConfig(
        **sizes, attention_bias=bias, mlp_bias=bias, layer_norms=True, parallel=parallel, own_norms=norms == 2
    )


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    sizes, own = keys.sizes(), keys.has("blk.0.attn_norm_2.weight")
    return FalconConfig(**{**sizes, "mlp_bias": False}, layer_norms=True, parallel=True, own_norms=own)


_LAYER = {
    **{"self_attention.query_key_value": "q k v", "self_attention.dense": "o"},
    **{"ln_attn": "attention_norm_2", "ln_mlp": "attention_norm"},
    **{"mlp.dense_h_to_4h": "up", "mlp.dense_4h_to_h": "down"},
}
FALCON = replace(
    LLAMA,
    name="falcon",
    title="Falcon",
    classes=("FalconForCausalLM",),
    model_types=("falcon",),
    gguf=("falcon",),
    read_folder=_read_folder,
    read_gguf=_read_gguf,
    record=record,
    folder_names=replace(
        names.folder(_LAYER),
        names={"word_embeddings": "embedding", "ln_f": "norm", "lm_head": "lm_head"},
        layer_prefix="h.",
        outer={"transformer.": ""},
        qkv_by_heads=True,
    ),
    gguf_names=names.gguf({"attn_norm_2": "attention_norm_2"}),
    notes="7B, 40B, 180B and Falcon 2 11B; those with ALiBi are not",
)
