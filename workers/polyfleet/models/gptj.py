"""GPT-J: attention and MLP side by side behind one layer norm; a part of each head turns, by neighbouring pairs."""

from dataclasses import replace

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import OpKind
from polyfleet.models import names
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes
from polyfleet.models.gpt2 import ACTIVATIONS, FIELDS, GptConfig
from polyfleet.models.llama import LLAMA
from polyfleet.models.recorder import Recorder

TURNING = 64  # columns of a head, where files say nothing


def record(config: GptConfig, model: Recorder) -> KernelGraph:
    """What both branches come to is added to what entered their norm."""
    rope, graph = model.rope(), model.graph
    x = model.embedding()
    for _ in model.layers():
        normed = model.norm(x, "attention_norm")
        x = graph.add(model.attention(normed, rope), x)
        x = graph.add(model.plain_mlp(normed, lambda y: graph.unary(config.activation, y), bias=True), x)
    return model.finish(x, bias=True)


def _read_folder(fields: Fields) -> ModelConfig:
    check_activation(fields, tuple(ACTIVATIONS), "activation_function")
    if not fields.flag("scale_attn_weights", True):
        raise fields.error("scale_attn_weights = false is not supported by this architecture: products are scaled")
    renamed = {new: fields.values[old] for old, new in FIELDS.items() if fields.has(old)}
    fields.read.update((*FIELDS, "rotary", *(name for name in fields.values if name.startswith("summary_"))))
    values = {"max_position_embeddings": 2048, **fields.values, **renamed}
    stated = replace(fields, values=values)
    hidden = stated.count("hidden_size")
    head_dim = max(1, hidden // stated.count("num_attention_heads"))
    turning = fields.count("rotary_dim", TURNING)
    if turning > head_dim or turning % 2:
        raise fields.error(f"rotary_dim must be even and at most the {head_dim} columns of a head, not {turning}")
    values |= {"partial_rotary_factor": turning / head_dim, "num_key_value_heads": values["num_attention_heads"]}
    if "intermediate_size" not in renamed:
        values["intermediate_size"] = 4 * hidden
    sizes = read_sizes(stated, norm_eps=1e-5, partial=1.0, eps="layer_norm_epsilon")
    activation: OpKind = ACTIVATIONS[fields.text("activation_function", "gelu_new")]
    return GptConfig(**sizes, mlp_bias=True, layer_norms=True, activation=activation)


_LAYER = {
    **{f"attn.{each}_proj": each for each in "qkv"},
    **{"attn.out_proj": "o", "ln_1": "attention_norm", "mlp.fc_in": "up", "mlp.fc_out": "down"},
}
GPTJ = replace(
    LLAMA,
    name="gptj",
    title="GPT-J",
    classes=("GPTJForCausalLM",),
    model_types=("gptj",),
    gguf=(),
    read_folder=_read_folder,
    record=record,
    folder_names=replace(
        names.folder(_LAYER, interleaved=True),
        names={"wte": "embedding", "ln_f": "norm", "lm_head": "lm_head"},
        layer_prefix="h.",
        outer={"transformer.": ""},
        ignored=(r"(transformer\.)?h\.\d+\.attn\.((masked_)?bias|embed_positions)",),
    ),
    notes="",
)
