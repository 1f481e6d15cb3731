"""DeepSeek V2 and Qwen 3 Next in GGUF: the same program over the same weights as a folder's, so the same logits. Qwen
3.5: heads of values in another order, and so another program, of the same logits."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.batching import over
from tests.support.eager_models import workload
from tests.support.tiny_architectures import LATENT, TINY, make
from tests.support.tiny_gguf import write_gguf
from tests.support.tiny_hybrids import DELTA
from tests.support.tiny_kinds import YARN

from polyfleet.engine.batching.batch import BatchLimits
from polyfleet.executors.eager import EagerExecutor
from polyfleet.executors.persistent import PersistentExecutor
from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel
from polyfleet.models.qwen3_next import QWEN3_NEXT
from polyfleet.models.registry import record
from polyfleet.wire.requests import SequenceRequest

KEYS = {
    **{"attention.kv_lora_rank": 32, "attention.key_length": 48, "attention.value_length": 48},
    **{"rope.dimension_count": 16, "leading_dense_block_count": 1, "expert_count": 8, "expert_used_count": 2},
    **{"expert_shared_count": 2, "expert_feed_forward_length": 32, "expert_gating_func": 1},
    **{"expert_weights_scale": 2.0, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0},
    **{"rope.scaling.original_context_length": 64, "rope.scaling.yarn_log_multiplier": 0.09},
}
STATES = {
    **{"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32, "rope.dimension_count": 8},
    **{"expert_shared_feed_forward_length": 48, "ssm.conv_kernel": 3, "ssm.state_size": 16, "ssm.group_count": 2},
    **{"ssm.time_step_rank": 4, "ssm.inner_size": 128, "full_attention_interval": 2},
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
    _compare(tmp_path)


def test_layers_that_keep_a_state(tmp_path: Path) -> None:
    """Rows of all heads by kind, decays as rates: as llama.cpp's converter writes them."""
    tiny = replace(TINY["qwen3next"], gguf="qwen3next", keys=STATES, norm_offset=0.0)
    model = make(TINY["qwen3next"], tmp_path / "folder")
    converted = SimpleNamespace(config=model.config, state_dict=lambda: dict(_converted(model)))
    write_gguf(tiny, converted, tmp_path / "model.gguf")
    _compare(tmp_path, {"delta_decay": 1e-6})
    names = QWEN3_NEXT.gguf_names
    assert names.graph_names("blk.3.ssm_a") == ("layers.3.delta_decay",)
    assert names.graph_names("blk.3.ssm_dt.bias") == ("layers.3.delta_shift",)
    assert names.graph_names("blk.3.attn_k.bias") == ("layers.3.k.bias",)


@pytest.mark.parametrize("name", ["qwen3.5", "qwen3.5moe"])
def test_heads_of_values_that_take_turns(tmp_path: Path, name: str) -> None:
    """As llama.cpp's converter orders them, which has states spread over keys by turns."""
    tiny = replace(TINY[name], config={**TINY[name].config, **DELTA})
    model = make(tiny, tmp_path / "folder")
    keys = {**STATES, "rope.dimension_sections": [1, 1, 2, 0]}
    if name == "qwen3.5":
        keys = {key: value for key, value in keys.items() if not key.startswith("expert")}
    tiny = replace(tiny, gguf=name.replace(".", ""), keys=keys, norm_offset=0.0)
    converted = SimpleNamespace(config=model.config, state_dict=lambda: dict(_taking_turns(model)))
    write_gguf(tiny, converted, tmp_path / "model.gguf")
    folder, file = load_model(tmp_path / "folder"), load_model(tmp_path / "model.gguf")
    for kind, tolerance in (("eager", 1e-3), ("persistent", 1e-2)):  # the CPU library's cache has half precision
        np.testing.assert_allclose(_logprobs(kind, file), _logprobs(kind, folder), atol=tolerance, rtol=0)


def _logprobs(kind: str, model: LoadedModel) -> list[float]:
    """Of all tokens, behind a prompt and behind each of some tokens."""
    work = workload(model)
    executor: Any = EagerExecutor(work) if kind == "eager" else PersistentExecutor(work.graph, model.weights, threads=1)
    batcher = over(executor, BatchLimits(1, 16, 64, prefix_cache=False), num_blocks=4, block_size=16)
    prompt = tuple(range(3, 43))
    batcher.add(SequenceRequest("one", prompt, max_tokens=5, ignore_eos=True, logprobs=model.config.vocabulary_size))
    found: list[float] = []
    while batcher.has_work:
        for update in batcher.step().updates:
            assert not update.error
            for token in update.tokens:
                found += [each for _, each in sorted(zip(token.top_ids, token.top_logprobs, strict=True))]
    executor.close()
    return found


def _taking_turns(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Heads of values [keys, group] become [group, keys] wherever they lie."""
    config = model.config
    keys = config.linear_num_key_heads
    first = 2 * keys * config.linear_key_head_dim

    def turned(rows: torch.Tensor) -> torch.Tensor:
        return rows.view(keys, config.linear_num_value_heads // keys, -1).transpose(0, 1).reshape(rows.shape)

    for name, tensor in model.state_dict().items():
        if "in_proj_qkv" in name or "conv1d" in name:
            tensor = tensor.flatten(1)
            yield name, torch.cat((tensor[:first], turned(tensor[first:])))
        elif name.endswith(("in_proj_z.weight", "in_proj_a.weight", "in_proj_b.weight")):
            yield name, turned(tensor)
        elif "linear_attn.out_proj" in name:
            yield name, turned(tensor.T.contiguous()).T
        elif name.endswith("A_log"):
            yield f"{name}.weight", -turned(tensor).exp()
        elif name.endswith("dt_bias"):
            yield name.replace("dt_bias", "dt_proj.bias"), turned(tensor)
        else:
            yield name, tensor + 1 if name.endswith("norm.weight") and "linear_attn" not in name else tensor


def _converted(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    config = model.config
    group = config.linear_num_value_heads // config.linear_num_key_heads * config.linear_value_head_dim
    widths = [config.linear_key_head_dim, config.linear_key_head_dim, group, group]
    for name, tensor in model.state_dict().items():
        if name.endswith("in_proj_qkvz.weight"):
            parts = tensor.view(config.linear_num_key_heads, sum(widths), -1).split(widths, dim=1)
            *qkv, z = (part.flatten(0, 1) for part in parts)
            yield name.replace("qkvz", "qkv"), torch.cat(qkv)
            yield name.replace("qkvz", "z"), z
        elif name.endswith("A_log"):
            yield f"{name}.weight", -tensor.exp()
        elif name.endswith("dt_bias"):
            yield name.replace("dt_bias", "dt_proj.bias"), tensor
        elif "conv1d" in name:
            yield name, tensor.squeeze()
        else:
            yield name, tensor + 1 if name.endswith("norm.weight") and "linear_attn" not in name else tensor


def _compare(place: Path, tolerances: Mapping[str, float] = MappingProxyType({})) -> None:
    folder, file = load_model(place / "folder"), load_model(place / "model.gguf")
    assert folder.weights.keys() == file.weights.keys()
    for name, weight in folder.weights.items():
        tolerance = tolerances.get(name.rpartition(".")[2], 0.0)
        np.testing.assert_allclose(
            weight.data.numpy(), file.weights[name].data.numpy(), rtol=tolerance, atol=tolerance, err_msg=name
        )
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
