"""DeepSeek V2 in GGUF: the same program over the same weights as its folder's, so the same logits."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.support.tiny_architectures import LATENT, TINY, YARN, make, write_gguf

from polyfleet.loading.load import load_model
from polyfleet.models.registry import record

KEYS = {
    **{"attention.kv_lora_rank": 32, "attention.key_length": 48, "attention.value_length": 48},
    **{"rope.dimension_count": 16, "leading_dense_block_count": 1, "expert_count": 8, "expert_used_count": 2},
    **{"expert_shared_count": 2, "expert_feed_forward_length": 32, "expert_gating_func": 1},
    **{"expert_weights_scale": 2.0, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0},
    **{"rope.scaling.original_context_length": 64, "rope.scaling.yarn_log_multiplier": 0.09},
}
GROUPS = {"expert_group_count": 4, "expert_group_used_count": 2}


@pytest.mark.parametrize("groups", [True, False])
def test_a_file_holds_the_model_of_its_folder(tmp_path: Path, groups: bool) -> None:
    """With groups of experts, as V2, and without, as V2 Lite."""
    method = "group_limited_greedy" if groups else "greedy"
    rope = {**YARN, "mscale": 0.9, "mscale_all_dim": 0.9}
    config = {**LATENT, "topk_method": method, "routed_scaling_factor": 2.0, "rope_parameters": rope}
    tiny = replace(TINY["deepseek2"], config=config, gguf="deepseek2", keys={**KEYS, **(GROUPS if groups else {})})
    write_gguf(tiny, make(tiny, tmp_path / "folder"), tmp_path / "model.gguf")
    folder, file = load_model(tmp_path / "folder"), load_model(tmp_path / "model.gguf")
    assert folder.weights.keys() == file.weights.keys()
    for name, weight in folder.weights.items():
        np.testing.assert_array_equal(weight.data.numpy(), file.weights[name].data.numpy(), err_msg=name)
    mine, theirs = (record(each.config, each.weights) for each in (folder, file))
    assert len(mine.ops) == len(theirs.ops)
    for one, other in zip(mine.ops, theirs.ops, strict=True):
        assert (one.kind, one.inputs, one.weights) == (other.kind, other.inputs, other.weights)
        _same(one.attributes, other.attributes)


def _same(one: object, other: object) -> None:
    """Attributes, whose numbers a GGUF file has in float32."""
    assert type(one) is type(other)
    for name in getattr(one, "__dataclass_fields__", ()):
        mine, theirs = getattr(one, name), getattr(other, name)
        if isinstance(mine, float | tuple):
            np.testing.assert_allclose(mine, theirs, rtol=1e-6, err_msg=name)
        else:
            assert mine == theirs, name
