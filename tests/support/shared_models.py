"""A tiny random model of each architecture for ranks to share, and what steps of it come to; also as a rank's process.

python -m tests.support.shared_models STORE    # rank 1 of 2, which computes all of them beside rank 0
"""

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from tests.support.eager_models import CAPABILITIES
from torch import Tensor

from polyfleet.engine.choosing.executors import Workload
from polyfleet.executors.ranks.collectives import DistributedRanks
from polyfleet.executors.ranks.parts import of_rank
from polyfleet.graph.lowering import fuse
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Target, choose
from polyfleet.kernels.step import make_step
from polyfleet.kernels.table import implementations
from polyfleet.kernels.torch.program import Program
from polyfleet.kernels.weights.weight import Weight, WeightFormat
from polyfleet.kvcache.storage import KvStorage
from polyfleet.models.fields import Fields
from polyfleet.models.registry import ARCHITECTURES, record, weight_shapes
from polyfleet.wire.options import EngineOptions

CPU = torch.device("cpu")
BLOCK = 4
TOLERANCE = 2e-5  # of logits near 1, in float32: sums over ranks round otherwise
STATED: Mapping[str, Any] = {
    "num_labels": 1,  # of the classes that rank
    **{"vocab_size": 48, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 40, "max_position_embeddings": 64},
    **{"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    **{"full_attention_interval": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 4},
    **{"linear_key_head_dim": 8, "linear_value_head_dim": 8},
    **{
        "shared_expert_intermediate_size": 16,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "sliding_window": 6,
    },
}
OWN: Mapping[str, Mapping[str, Any]] = {  # what some state by names of their own
    "granite4": {
        **{"layer_types": ["mamba", "attention"], "mamba_n_heads": 8, "mamba_d_state": 16, "intermediate_size": 24},
        "shared_intermediate_size": 40,
    },
    "gpt2": {"n_inner": 40, "num_key_value_heads": None},
    "gpt_bigcode": {"n_inner": 40, "num_key_value_heads": None, "multi_query": False},
    "gpt_neox": {"num_key_value_heads": 4},
    "minicpm3": {"v_head_dim": 16},
    "gptj": {"n_inner": 40, "rotary_dim": 4},
    "falcon": {"ffn_hidden_size": 40, "num_kv_heads": 2, "new_decoder_architecture": True},
    "opt": {"ffn_dim": 40, "num_key_value_heads": None},
    "nemotron_h": {
        **{"hybrid_override_pattern": "ME*", "num_hidden_layers": 3, "mamba_num_heads": 8, "mamba_head_dim": 8},
        **{"moe_shared_expert_intermediate_size": 16, "sliding_window": None},
    },
    "mellum": {"rope_parameters": {"full_attention": {}, "sliding_attention": {}}},
    "llama4": {"num_experts_per_tok": 1, "no_rope_layers": [1, 0]},
    "falcon_h1": {"mamba_n_heads": 8, "mamba_d_ssm": 64, "mamba_d_state": 16},
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_state": 16},
    "lfm2": {"full_attn_idxs": [1], "block_auto_adjust_ff_dim": False},
    "lfm2moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1, "num_local_experts": None},
    "ernie4.5moe": {"moe_num_experts": 4, "moe_k": 2, "num_experts": None, "num_local_experts": None},
}


def workload(name: str, **changes: Any) -> Workload:
    """A tiny random model of an architecture."""
    architecture = ARCHITECTURES[name]
    stated = {**STATED, **OWN.get(name, {}), **changes}
    config = replace(architecture.read_folder(Fields("config.json", stated)), architecture=name)
    random = torch.Generator().manual_seed(len(name))
    weights = {}
    for weight, (rows, columns) in weight_shapes(config).items():
        data = torch.randn(rows, columns, generator=random)
        data = 1 + data / 8 if rows == 1 else data / columns**0.5
        weights[weight] = Weight(weight, WeightFormat.F32, rows, columns, data)
    graph = record(config, weights)
    return Workload(graph, weights, EngineOptions(), "cpu", "float32", CAPABILITIES)


def compute(work: Workload) -> tuple[Tensor, ...]:
    """Hidden states and logits of two sequences over three steps: a prompt, its rest and a prompt, two decodes."""
    chosen = choose(implementations(), Target("cpu", torch.float32))
    storage = KvStorage.allocate(work.graph.caches, 8, BLOCK, torch.float32, CPU, states=work.graph.states, slots=2)
    context = KernelContext(
        work.weights, CPU, torch.float32, storage.caches, BLOCK, states=storage.states, ranks=work.ranks
    )
    program = Program(fuse(work.graph), chosen, context, lambda share: None)
    one, two = (0, 2, 4), (5, 1)
    found: list[Tensor] = []
    for parts in (
        [((3, 7, 11, 4, 9), 0, one)],
        [((5, 6, 8), 5, one), ((12, 13, 14, 15), 0, two)],
        [((21,), 8, one), ((22,), 4, two)],
    ):
        with torch.inference_mode():
            found += program.run(make_step(parts, BLOCK, CPU))
    return tuple(found)


def compute_all(ranks: DistributedRanks) -> dict[str, tuple[Tensor, ...]]:
    """A rank's results for every architecture, one after the other."""
    works = {name: workload(name) for name in ARCHITECTURES}
    return {name: compute(replace(of_rank(work, ranks.rank, ranks.size), ranks=ranks)) for name, work in works.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    joined = DistributedRanks("gloo", sys.argv[1], 1, 2, CPU)
    compute_all(joined)
    joined.leave()
