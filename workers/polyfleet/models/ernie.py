"""ERNIE 4.5, dense: Llama whose pairs that turn are neighbours in folders too."""

from dataclasses import replace

from polyfleet.models import names
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes
from polyfleet.models.llama import LLAMA


def _read_folder(fields: Fields) -> ModelConfig:
    check_activation(fields)
    bias = fields.flag("use_bias", False)
    sizes = read_sizes(fields, head_dim=128, context_length=131072, norm_eps=1e-5, tied=True)
    return ModelConfig(**sizes, attention_bias=bias, mlp_bias=bias)


ERNIE = replace(
    LLAMA,
    name="ernie4.5",
    title="ERNIE 4.5",
    classes=("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"),
    model_types=("ernie4_5",),
    gguf=("ernie4_5",),
    read_folder=_read_folder,
    folder_names=names.folder(interleaved=True),
    notes="dense models",
)
