"""GPT 2 and StarCoder 1: positions are learned, layer norms have biases, and MLPs no gate. GPT 2's matrices lie columns
first in folders; all queries of StarCoder 1 share one key and value."""

from dataclasses import dataclass, replace
from typing import Any

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import Lookup, OpKind
from polyfleet.models import names
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.llama import LLAMA
from polyfleet.models.recorder import Recorder

ACTIVATIONS = {  # by their names in files
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), OpKind.GELU_TANH),
    "gelu": OpKind.GELU,
}
FIELDS = {  # of folders, and what others call the same
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
    "n_inner": "intermediate_size",
}
# The precision of sums, and how other software computes.
IDLE = (
    *("n_ctx", "reorder_and_upcast_attn", "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"),
    *("inference_runner", "validate_runner_input", "pre_allocate_kv_cache", "pad_key_length"),
)
LEARNED: dict[str, Any] = {"inverse_frequencies": (), "layer_norms": True, "attention_bias": True, "mlp_bias": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class GptConfig(ModelConfig):
    """`activation`: of the MLP."""

    activation: OpKind


def record(config: GptConfig, model: Recorder) -> KernelGraph:
    """The usual decoder over tokens and positions."""
    return over_positions(model, config.context_length, Lookup(), config.activation)


def over_positions(model: Recorder, rows: int, lookup: Lookup, activation: OpKind) -> KernelGraph:
    """A decoder over tokens and learned positions, a table of so many rows; plain MLPs, biases everywhere."""
    graph, rope = model.graph, model.rope()
    x = graph.add(model.lookup("positions", rows, lookup), model.embedding())
    for _ in model.layers():
        attended = model.attention(model.norm(x, "attention_norm"), rope, bias=True, output_bias=True)
        x = graph.add(attended, x)
        inner = model.norm(x, "mlp_norm")
        x = graph.add(model.plain_mlp(inner, lambda y: graph.unary(activation, y), bias=True), x)
    return model.finish(x)


def _read_folder(fields: Fields) -> ModelConfig:
    return _read(fields, {})


def _read_bigcode(fields: Fields) -> ModelConfig:
    return _read(fields, {"num_key_value_heads": 1} if fields.flag("multi_query", True) else {})


def _read(fields: Fields, stated: dict[str, Any]) -> ModelConfig:
    check_activation(fields, tuple(ACTIVATIONS), "activation_function")
    if not fields.flag("scale_attn_weights", True):
        raise fields.error("scale_attn_weights = false is not supported by this architecture: products are scaled")
    renamed = {new: fields.values[old] for old, new in FIELDS.items() if fields.has(old)}
    fields.read.update((*FIELDS, *IDLE, *(name for name in fields.values if name.startswith("summary_"))))
    values = {"max_position_embeddings": 1024, **fields.values, **renamed, **stated}
    if "intermediate_size" not in renamed:
        values["intermediate_size"] = 4 * replace(fields, values=values).count("hidden_size")
    sizes = read_sizes(replace(fields, values=values), norm_eps=1e-5, tied=True, eps="layer_norm_epsilon")
    activation = ACTIVATIONS[fields.text("activation_function", "gelu_new")]
    return GptConfig(**{**sizes, **LEARNED}, activation=activation)


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    return GptConfig(**{**keys.sizes(), **LEARNED}, activation=OpKind.GELU_TANH)


def _read_gguf_bigcode(keys: GgufKeys) -> ModelConfig:
    return GptConfig(**{**keys.sizes(), **LEARNED}, activation=OpKind.GELU)


_LAYER = {
    **{"ln_1": "attention_norm", "ln_2": "mlp_norm", "attn.c_attn": "q k v", "attn.c_proj": "o"},
    **{"mlp.c_fc": "up", "mlp.c_proj": "down"},
}
_FOLDER = replace(
    names.folder(_LAYER),
    names={"wte": "embedding", "wpe": "positions", "ln_f": "norm", "lm_head": "lm_head"},
    layer_prefix="h.",
    outer={"transformer.": ""},
    ignored=(r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias",),
)
_GGUF = replace(names.gguf(), names={**names.GGUF, "position_embd": "positions"})
GPT2 = replace(
    LLAMA,
    name="gpt2",
    title="GPT 2",
    classes=("GPT2LMHeadModel", "GPT2Model"),
    model_types=("gpt2",),
    gguf=("gpt2",),
    read_folder=_read_folder,
    read_gguf=_read_gguf,
    record=record,
    folder_names=replace(_FOLDER, turned=("q", "o", "up", "down")),
    gguf_names=_GGUF,
    notes="",
)
GPT_BIGCODE = replace(
    GPT2,
    name="gpt_bigcode",
    title="StarCoder 1",
    classes=("GPTBigCodeForCausalLM",),
    model_types=("gpt_bigcode",),
    gguf=("starcoder",),
    read_folder=_read_bigcode,
    read_gguf=_read_gguf_bigcode,
    folder_names=_FOLDER,
    notes="SantaCoder and others of GPT-BigCode too",
)
