"""GPT-NeoX and Pythia: attention and MLP side by side behind norms of their own, or one behind the other; a part of
each head turns."""

from dataclasses import dataclass, replace

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import OpKind
from polyfleet.models import names
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.gpt2 import ACTIVATIONS, GptConfig
from polyfleet.models.llama import LLAMA
from polyfleet.models.recorder import Recorder

TURNING = 0.25  # of a head, where files say nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class NeoxConfig(GptConfig):
    """`parallel`: whether the MLP reads what attention does."""

    parallel: bool


def record(config: NeoxConfig, model: Recorder) -> KernelGraph:
    """Both branches are added to what enters a layer."""
    graph, rope, bias = model.graph, model.rope(), config.attention_bias
    x = model.embedding()
    for _ in model.layers():
        attended = model.attention(model.norm(x, "attention_norm"), rope, bias=bias, output_bias=bias)
        after = graph.add(attended, x)
        inner = model.norm(x if config.parallel else after, "mlp_norm")
        x = graph.add(model.plain_mlp(inner, lambda y: graph.unary(config.activation, y), bias=True), after)
    return model.finish(x)


def _read_folder(fields: Fields) -> ModelConfig:
    check_activation(fields, tuple(ACTIVATIONS))
    values = {"hidden_act": "gelu", **fields.values}
    for old, new in {"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"}.items():
        if fields.has(old):
            values[new] = fields.values[old]
            fields.read.add(old)
    sizes = read_sizes(replace(fields, values=values), norm_eps=1e-5, partial=TURNING, eps="layer_norm_eps")
    return NeoxConfig(
        **sizes,
        attention_bias=fields.flag("attention_bias", True),
        mlp_bias=True,
        layer_norms=True,
        parallel=fields.flag("use_parallel_residual", True),
        activation=ACTIVATIONS[values["hidden_act"]],
    )


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    sizes = {**keys.sizes(), "mlp_bias": True}
    return NeoxConfig(
        **sizes,
        layer_norms=True,
        parallel=keys.fields.flag("use_parallel_residual", True),
        activation=OpKind.GELU,
    )


_LAYER = {"attention.query_key_value": "q k v", "attention.dense": "o"}
GPT_NEOX = replace(
    LLAMA,
    name="gpt_neox",
    title="GPT-NeoX",
    classes=("GPTNeoXForCausalLM",),
    model_types=("gpt_neox",),
    gguf=("gptneox",),
    read_folder=_read_folder,
    read_gguf=_read_gguf,
    record=record,
    folder_names=replace(
        names.folder({**_LAYER, "mlp.dense_h_to_4h": "up", "mlp.dense_4h_to_h": "down"}),
        names={
            **{"embed_in": "embedding", "final_layer_norm": "norm"},
            **{"embed_out": "lm_head", "lm_head": "lm_head"},
        },
        layer_prefix="layers.",
        outer={"gpt_neox.": ""},
        ignored=(r".*\.attention\.((masked_)?bias|rotary_emb\.inv_freq)",),
        qkv_by_heads=True,
    ),
    gguf_names=names.gguf(),
    notes="Pythia and others",
)
