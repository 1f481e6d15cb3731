"""InternLM 2 and 2.5: Llama, whose folders have names of their own and one matrix for queries, keys and values."""

from dataclasses import replace

from polyfleet.models import names
from polyfleet.models.architecture import TensorNames
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.folder import check_activation, read_sizes
from polyfleet.models.llama import LLAMA

_FOLDER = TensorNames(
    {"model.tok_embeddings": "embedding", "model.norm": "norm", "output": "lm_head"},
    "model.layers.",
    {
        "attention_norm": "attention_norm",
        "attention.wqkv": "q k v",
        "attention.wo": "o",
        "ffn_norm": "mlp_norm",
        "feed_forward.w1": "gate",
        "feed_forward.w3": "up",
        "feed_forward.w2": "down",
    },
    names.IMPLIED_BY_CONFIG,
    qkv_by_heads=True,
)


def _read_folder(fields: Fields) -> ModelConfig:
    """Models with biases are refused."""
    check_activation(fields)
    return ModelConfig(**read_sizes(fields))


INTERNLM2 = replace(
    LLAMA,
    name="internlm2",
    title="InternLM 2 and 2.5",
    classes=("InternLM2ForCausalLM",),
    model_types=("internlm2",),
    gguf=("internlm2",),
    read_folder=_read_folder,
    folder_names=_FOLDER,
    notes="the folder's own code is never executed",
)
