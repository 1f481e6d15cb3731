"""Bamba: Llama's layers, of which most keep Mamba 2's state in the place of a cache; of other heads a half turns."""

from dataclasses import dataclass, replace

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.models import mamba2, names
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes
from polyfleet.models.llama import LLAMA
from polyfleet.models.mamba2 import Mamba2
from polyfleet.models.recorder import Recorder

TURNING = 0.5  # of a head, whatever files say


@dataclass(frozen=True, slots=True, kw_only=True)
class BambaConfig(ModelConfig):
    """`attending`: layers that keep no state."""

    attending: tuple[int, ...]
    mamba: Mamba2


def record(config: BambaConfig, model: Recorder) -> KernelGraph:
    """The usual decoder with these parts."""
    rope, bias = model.rope(), config.attention_bias

    def mix(layer: int, x: int) -> int:
        if layer in config.attending:
            return model.attention(x, rope, bias=bias, output_bias=bias)
        return mamba2.mix(config.mamba, model, x, hidden=config.hidden_size)

    return model.pre_norm_decoder(mix)


def _read_folder(fields: Fields) -> ModelConfig:
    check_activation(fields)
    sizes = read_sizes(fields, context_length=262144, norm_eps=1e-5, partial=TURNING)
    attending = tuple(fields.items("attn_layer_indices"))
    if not set(attending) <= set(range(sizes["num_layers"])):
        raise fields.error(f"attn_layer_indices must be some of 0 to {sizes['num_layers'] - 1}")
    turning = 2 * len(sizes["inverse_frequencies"])
    if fields.count("attn_rotary_emb", turning) != turning:
        raise fields.error(f"attn_rotary_emb must be {turning}, the half of a head")
    fields.read.add("z_loss_coefficient")
    return BambaConfig(
        **sizes,
        attention_bias=fields.flag("attention_bias", False),
        mlp_bias=fields.flag("mlp_bias", False),
        attending=attending,
        mamba=mamba2.read_folder(fields),
    )


_LAYER = {
    **{"pre_ff_layernorm": "mlp_norm"},
    **{f"feed_forward.{each}_proj": each for each in ("gate", "up", "down")},
    **{f"mamba.{name}": each for name, each in mamba2.LAYER.items()},
}
BAMBA = replace(
    LLAMA,
    name="bamba",
    title="Bamba",
    classes=("BambaForCausalLM",),
    model_types=("bamba",),
    gguf=(),
    read_folder=_read_folder,
    record=record,
    folder_names=replace(names.folder(_LAYER), names={**names.FOLDER, "model.final_layernorm": "norm"}),
    notes=f"{mamba2.NOTES}; its GGUF files are Granite 4's",
)
