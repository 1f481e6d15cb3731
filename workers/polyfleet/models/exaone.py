"""EXAONE 3 and 3.5: Llama under other names."""

from dataclasses import replace

from polyfleet.models import names
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.llama import LLAMA

FIELDS = {  # of folders, and what others call the same
    "num_layers": "num_hidden_layers",
    "layer_norm_epsilon": "rms_norm_eps",
    "activation_function": "hidden_act",
}
DEFAULTS = {"rope_theta": 500000.0, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5}
_LAYER = {
    **{f"attn.attention.{each}_proj": each for each in "qkv"},
    **{"attn.attention.out_proj": "o", "ln_1": "attention_norm", "ln_2": "mlp_norm"},
    **{"mlp.c_fc_0": "gate", "mlp.c_fc_1": "up", "mlp.c_proj": "down"},
}


def _read_folder(fields: Fields) -> ModelConfig:
    renamed = {new: fields.values[old] for old, new in FIELDS.items() if fields.has(old)}
    fields.read.update(FIELDS)
    defaults = {} if fields.has("rope_parameters") else DEFAULTS
    return LLAMA.read_folder(replace(fields, values={**defaults, **fields.values, **renamed}))


EXAONE = replace(
    LLAMA,
    name="exaone",
    title="EXAONE 3 and 3.5",
    classes=("ExaoneForCausalLM",),
    model_types=("exaone",),
    written_as=("LlamaForCausalLM",),
    gguf=("exaone",),
    read_folder=_read_folder,
    folder_names=replace(
        names.folder(_LAYER),
        outer={
            "transformer.h.": "model.layers.",
            "transformer.wte.": "model.embed_tokens.",
            "transformer.ln_f.": "model.norm.",
        },
    ),
    gguf_names=names.gguf(),
    notes="",
)
