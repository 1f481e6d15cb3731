"""OPT: positions are learned, layer norms have biases, and MLPs cut off what is below 0."""

from dataclasses import replace

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import Lookup, OpKind
from polyfleet.models import names
from polyfleet.models.architecture import Architecture
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.gpt2 import over_positions
from polyfleet.models.recorder import Recorder

FIRST_POSITION = 2  # rows of the table before it stand for nothing
ALIKE = {"do_layer_norm_before": True, "enable_bias": True, "layer_norm_elementwise_affine": True}


def record(config: ModelConfig, model: Recorder) -> KernelGraph:
    """The usual decoder over tokens and positions."""
    return over_positions(model, config.context_length + FIRST_POSITION, Lookup(FIRST_POSITION), OpKind.RELU)


def _read_folder(fields: Fields) -> ModelConfig:
    """Models whose norms stand behind the branches, as OPT 350M's, are refused."""
    check_activation(fields, ("relu",), "activation_function")
    for key, value in ALIKE.items():
        if fields.flag(key, value) is not value:
            raise fields.error(f"{key} = false is not supported by this architecture: it must be true")
    if fields.flag("_remove_final_layer_norm", False):
        raise fields.error("_remove_final_layer_norm = true is not supported by this architecture: it has a last norm")
    hidden = fields.count("hidden_size", 768)
    if (width := fields.count("word_embed_proj_dim", hidden)) != hidden:
        raise fields.error(f"word_embed_proj_dim = {width} is not supported: it must be the hidden_size")
    fields.read.add("layerdrop")
    inner = fields.count("ffn_dim", 3072)
    sizes = read_sizes(replace(fields, values={**fields.values, "intermediate_size": inner}), tied=True)
    return ModelConfig(
        **{**sizes, "norm_eps": 1e-5, "inverse_frequencies": (), "attention_bias": True, "mlp_bias": True},
        layer_norms=True,
    )


def _read_gguf(keys: GgufKeys) -> ModelConfig:
    raise keys.fields.error("OPT has no GGUF files")


_FOLDER = replace(
    names.folder(
        {
            **{"self_attn.out_proj": "o", "self_attn_layer_norm": "attention_norm", "final_layer_norm": "mlp_norm"},
            **{"fc1": "up", "fc2": "down"},
        }
    ),
    names={
        "embed_tokens": "embedding",
        "embed_positions": "positions",
        "final_layer_norm": "norm",
        "lm_head": "lm_head",
    },
    layer_prefix="layers.",
    outer={"model.decoder.": "", "decoder.": ""},
)
OPT = Architecture(
    name="opt",
    title="OPT",
    classes=("OPTForCausalLM",),
    model_types=("opt",),
    gguf=(),
    read_folder=_read_folder,
    read_gguf=_read_gguf,
    record=record,
    folder_names=_FOLDER,
    gguf_names=names.gguf(),
    notes="but 350M, whose norms stand elsewhere",
)
