"""Configurations of models with Mamba 2's layers as publishers write them."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from polyfleet.loading.folder_config import read_config
from polyfleet.models.errors import ModelFileError
from polyfleet.models.registry import weight_shapes

GRANITE: dict[str, Any] = {
    "architectures": ["GraniteMoeHybridForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "attention_multiplier": 0.015625, "bos_token_id": 100257, "embedding_multiplier": 12, "eos_token_id": 100257,
    "hidden_act": "silu", "hidden_size": 2048, "init_method": "mup", "initializer_range": 0.1,
    "intermediate_size": 8192, "layer_types": [("attention" if at % 10 == 5 else "mamba") for at in range(40)],
    "logits_scaling": 8, "mamba_chunk_size": 256, "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_head": 64,
    "mamba_d_state": 128, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 64, "mamba_proj_bias": False,
    "max_position_embeddings": 131072, "model_type": "granitemoehybrid", "normalization_function": "rmsnorm",
    "num_attention_heads": 32, "num_experts_per_tok": 0, "num_hidden_layers": 40, "num_key_value_heads": 8,
    "num_local_experts": 0, "output_router_logits": False, "pad_token_id": 100256, "position_embedding_type": "nope",
    "residual_multiplier": 0.22, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 10000,
    "router_aux_loss_coef": 0.01, "shared_intermediate_size": 8192, "tie_word_embeddings": True,
    "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 100352,
}  # fmt: skip


def read(folder: Path, stated: dict[str, Any]) -> Any:
    (folder / "config.json").write_text(json.dumps(stated))
    return read_config(folder)[1]


@pytest.mark.parametrize(("stated", "parameters"), [(GRANITE, 3.19)])
def test_sizes(tmp_path: Path, stated: dict[str, Any], parameters: float) -> None:
    """So many billions, as their makers say."""
    shapes = weight_shapes(read(tmp_path, stated))
    assert sum(map(math.prod, shapes.values())) / 1e9 == pytest.approx(parameters, rel=5e-3)


@pytest.mark.parametrize(
    ("stated", "change", "culprit"),
    [
        (GRANITE, {"layer_types": ["mamba3"] * 40}, "layer_types must name attention, full_attention, mamba, linear"),
        (GRANITE, {"position_embedding_type": "alibi"}, r"'alibi' is not supported \(supported: rope, nope\)"),
        (GRANITE, {"normalization_function": "layernorm"}, "normalization_function 'layernorm'"),
        (GRANITE, {"mamba_n_heads": 60}, "60 mamba heads of 64 columns are not the 4096 that there are"),
        (GRANITE, {"mamba_n_groups": 3}, "64 mamba heads can't share 3 groups evenly"),
        (GRANITE, {"mamba_d_conv": 1}, "mamba_d_conv must be 2 to 64"),
        (GRANITE, {"time_step_limit": [0.0, 0.5]}, r"time_step_limit = \[0.0, 0.5\] is not supported"),
        (GRANITE, {"mamba_step_rank": 4}, "mamba_step_rank = 4 is not supported"),
    ],
)
def test_variants_that_are_not_known(
    tmp_path: Path, stated: dict[str, Any], change: dict[str, Any], culprit: str
) -> None:
    with pytest.raises(ModelFileError, match=culprit):
        read(tmp_path, stated | change)
