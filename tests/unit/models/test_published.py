"""Configurations as publishers write them are understood: no key of them is foreign, and they mean what they should."""

import math
from pathlib import Path
from typing import Any

import pytest
from tests.support.published_configs import read

from polyfleet.graph.ops import Route
from polyfleet.models.errors import ModelFileError
from polyfleet.models.latent import LatentConfig
from polyfleet.models.mixture import MixtureConfig
from polyfleet.models.recorder import Recorder
from polyfleet.models.registry import ARCHITECTURES, weight_shapes

YARN = {"beta_fast": 32, "beta_slow": 1, "factor": 40, "original_max_position_embeddings": 4096, "type": "yarn"}
DEEPSEEK: dict[str, Any] = {
    "attention_bias": False, "attention_dropout": 0.0, "aux_loss_alpha": 0.001, "auto_map": {"AutoConfig": "x.Y"},
    "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1, "hidden_act": "silu", "initializer_range": 0.02,
    "kv_lora_rank": 512, "max_position_embeddings": 163840, "moe_layer_freq": 1, "pretraining_tp": 1,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06, "rope_theta": 10000, "seq_aux": True,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.33.1", "use_cache": True,
    "v_head_dim": 128,
}  # fmt: skip
V3 = DEEPSEEK | {
    "architectures": ["DeepseekV3ForCausalLM"], "first_k_dense_replace": 3, "hidden_size": 7168, "n_group": 8,
    "intermediate_size": 18432, "model_type": "deepseek_v3", "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536,
    "rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}, "routed_scaling_factor": 2.5, "topk_group": 4,
    "scoring_func": "sigmoid", "topk_method": "noaux_tc", "vocab_size": 129280,
}  # fmt: skip
V2_LITE = DEEPSEEK | {
    "architectures": ["DeepseekV2ForCausalLM"], "first_k_dense_replace": 1, "hidden_size": 2048, "n_group": 1,
    "intermediate_size": 10944, "model_type": "deepseek_v2", "moe_intermediate_size": 1408, "n_routed_experts": 64,
    "n_shared_experts": 2, "norm_topk_prob": False, "num_attention_heads": 16, "num_experts_per_tok": 6,
    "num_hidden_layers": 27, "num_key_value_heads": 16, "q_lora_rank": None, "routed_scaling_factor": 1.0,
    "rope_scaling": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}, "scoring_func": "softmax", "topk_group": 1,
    "topk_method": "greedy", "vocab_size": 102400,
}  # fmt: skip
GPT_OSS: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"], "attention_bias": True, "attention_dropout": 0.0, "eos_token_id": 200002,
    "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880, "initial_context_length": 4096,
    "initializer_range": 0.02, "intermediate_size": 2880, "max_position_embeddings": 131072, "model_type": "gpt_oss",
    "layer_types": ["sliding_attention", "full_attention"] * 12, "num_attention_heads": 64, "num_experts_per_tok": 4,
    "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32, "output_router_logits": False,
    "pad_token_id": 199999, "quantization_config": {"modules_to_not_convert": ["lm_head"], "quant_method": "mxfp4"},
    "rms_norm_eps": 1e-05, "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
    "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": False}, "rope_theta": 150000,
    "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": False,
    "transformers_version": "4.55.0.dev0", "use_cache": True, "vocab_size": 201088,
}  # fmt: skip
QWEN3_MOE: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643,
    "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 6144, "max_position_embeddings": 40960, "max_window_layers": 48,
    "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": True,
    "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
    "num_key_value_heads": 4, "output_router_logits": False, "rms_norm_eps": 1e-06, "rope_scaling": None,
    "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": None, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": True, "use_sliding_window": False,
    "vocab_size": 151936,
}  # fmt: skip

QWEN3_CODER = QWEN3_MOE | {
    "hidden_size": 6144, "intermediate_size": 8192, "max_position_embeddings": 262144, "max_window_layers": 62,
    "moe_intermediate_size": 2560, "num_attention_heads": 96, "num_experts": 160, "num_hidden_layers": 62,
    "num_key_value_heads": 8, "qkv_bias": False, "rope_theta": 10000000, "router_aux_loss_coef": 0.0,
    "shared_expert_intermediate_size": 0, "use_qk_norm": True,
}  # fmt: skip
QWEN3_NEXT: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 5120,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    "linear_value_head_dim": 128, "max_position_embeddings": 262144, "mlp_only_layers": [], "model_type": "qwen3_next",
    "moe_intermediate_size": 512, "norm_topk_prob": True, "num_attention_heads": 16, "num_experts": 512,
    "num_experts_per_tok": 10, "num_hidden_layers": 48, "num_key_value_heads": 2, "output_router_logits": False,
    "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 10000000,
    "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 512, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "transformers_version": "4.57.0.dev0", "use_cache": True, "use_sliding_window": False,
    "vocab_size": 151936,
}  # fmt: skip
QWEN3_5: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "dtype": "bfloat16",
    "attn_output_gate": True, "eos_token_id": 248044, "full_attention_interval": 4, "head_dim": 256,
    "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 12288,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 8, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
    "mamba_ssm_dtype": "float32", "max_position_embeddings": 262144, "model_type": "qwen3_5_text",
    "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False, "num_attention_heads": 16,
    "num_hidden_layers": 32, "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "tie_word_embeddings": False,
    "rope_parameters": {"mrope_interleaved": True, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25,
    "rope_theta": 10000000, "rope_type": "default"}, "use_cache": True, "vocab_size": 248320,
}  # fmt: skip

OLMOE: dict[str, Any] = {
    "architectures": ["OlmoeForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "clip_qkv": None,
    "eos_token_id": 50279, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
    "intermediate_size": 1024, "max_position_embeddings": 4096, "model_type": "olmoe", "norm_topk_prob": False,
    "num_attention_heads": 16, "num_experts": 64, "num_experts_per_tok": 8, "num_hidden_layers": 16,
    "num_key_value_heads": 16, "output_router_logits": False, "pad_token_id": 1, "rope_scaling": None,
    "rope_theta": 10000.0, "router_aux_loss_coef": 0.01, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "use_cache": True, "vocab_size": 50304,
}  # fmt: skip
ERNIE: dict[str, Any] = {
    "architectures": ["Ernie4_5_MoeForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    "hidden_size": 2560, "intermediate_size": 12288, "max_position_embeddings": 131072, "model_type": "ernie4_5_moe",
    "moe_capacity": [64, 64, 64], "moe_intermediate_size": 1536, "moe_k": 6, "moe_layer_interval": 1,
    "moe_layer_start_index": 1, "moe_num_experts": 64, "moe_num_shared_experts": 2, "num_attention_heads": 20,
    "num_hidden_layers": 28, "num_key_value_heads": 4, "pad_token_id": 0, "rms_norm_eps": 1e-05,
    "rope_scaling": None, "rope_theta": 500000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "use_bias": False, "use_cache": False, "vocab_size": 103424,
}  # fmt: skip
HUNYUAN: dict[str, Any] = {  # numbers of each layer, all the same
    "architectures": ["HunYuanMoEV1ForCausalLM"], "attention_head_dim": 128, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 3072, "max_position_embeddings": 32768, "mlp_bias": False,
    "model_type": "hunyuan_v1_moe", "moe_drop_tokens": False, "moe_intermediate_size": [3072] * 32,
    "moe_layer_num_skipped": 0, "moe_random_routing_dropped_token": False, "moe_topk": [8] * 32,
    "norm_topk_prob": True, "norm_type": "rms", "num_attention_heads": 32, "num_experts": 64,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "num_shared_expert": [1] * 32, "org_vocab_size": 128167,
    "rms_norm_eps": 1e-05, "rope_scaling": {"alpha": 1000.0, "factor": 1.0, "type": "dynamic"}, "use_qk_norm": True,
    "rope_theta": 10000.0, "tie_word_embeddings": True, "use_cla": False, "use_mixed_mlp_moe": True,
    "vocab_size": 128167,
}  # fmt: skip


@pytest.mark.parametrize(("stated", "stretch"), [(V3, 1.0), (V2_LITE, 0.707)])
def test_deepseek(tmp_path: Path, stated: dict[str, Any], stretch: float) -> None:
    """YaRN sharpens attention, and makes no pairs grow that turn."""
    config = read(tmp_path, stated)
    assert isinstance(config, LatentConfig)
    assert config.rope_amplitude == 1
    assert config.attention_scale == pytest.approx(192**-0.5 * (0.1 * stretch * math.log(40) + 1) ** 2)
    assert config.dense == tuple(range(stated["first_k_dense_replace"]))
    groups = (8, 4, 2) if stated is V3 else (1, 1, 1)
    sigmoid, scale = stated is V3, stated["routed_scaling_factor"]
    expected = Route(stated["n_routed_experts"], stated["num_experts_per_tok"], sigmoid, sigmoid, scale, *groups)
    assert config.route == expected


def test_a_gpt_oss_that_states_no_rope_has_the_published_one(tmp_path: Path) -> None:
    """As transformers takes it."""
    bare = {key: value for key, value in GPT_OSS.items() if not key.startswith("rope_")}
    assert read(tmp_path, bare) == read(tmp_path, GPT_OSS)


@pytest.mark.parametrize(
    ("stated", "parameters"),
    [
        *((V3, 671.0), (V2_LITE, 15.7), (GPT_OSS, 20.9), (QWEN3_MOE, 30.5), (QWEN3_NEXT, 79.7)),
        (QWEN3_CODER, 480.0),
        *((OLMOE, 6.92), (ERNIE, 21.8), (HUNYUAN, 80.4)),
    ],
)
def test_sizes(tmp_path: Path, stated: dict[str, Any], parameters: float) -> None:
    """So many billions, as their makers say."""
    config = read(tmp_path, stated)
    assert isinstance(config, MixtureConfig)
    assert sum(math.prod(shape) for shape in weight_shapes(config).values()) / 1e9 == pytest.approx(
        parameters, rel=5e-3
    )


@pytest.mark.parametrize("stated", [QWEN3_NEXT, QWEN3_5])
def test_delta_nets(tmp_path: Path, stated: dict[str, Any]) -> None:
    """Three layers of four keep a state: 2 MiB of it each, whatever the context."""
    config = read(tmp_path, stated)
    assert [number for number, kept in enumerate(config.recurrent) if not kept][:2] == [3, 7]
    assert len(config.inverse_frequencies) == 32, "a quarter of a head turns"
    recorder = Recorder(config)
    graph = ARCHITECTURES[config.architecture].record(config, recorder)
    assert len(graph.caches) == config.num_layers // 4
    state, past = 32 * 128 * 128, 3 * (2 * 16 + 32) * 128
    assert graph.state_bytes == config.num_layers * 3 // 4 * 4 * (state + past)
    changed = stated | {"attn_output_gate": False}
    with pytest.raises(ModelFileError, match="attention without a gate"):
        read(tmp_path, changed)


@pytest.mark.parametrize(
    ("stated", "change", "culprit"),
    [
        (QWEN3_CODER, {"use_qk_norm": False}, "use_qk_norm = false"),
        (OLMOE, {"clip_qkv": 8.0}, "clip_qkv"),
        (ERNIE, {"use_bias": True}, "use_bias"),
        (ERNIE, {"moe_norm_min": 0.1}, "moe_norm_min"),
        (ERNIE, {"moe_k": 65}, "65 of 64 experts"),
        (HUNYUAN, {"moe_topk": [8] * 31 + [4]}, "moe_topk must be the same in all layers"),
        (HUNYUAN, {"moe_topk": [8] * 31}, "moe_topk"),
        (HUNYUAN, {"moe_layer_num_skipped": 1}, "moe_layer_num_skipped"),
        (HUNYUAN, {"use_mixed_mlp_moe": False}, "use_mixed_mlp_moe"),
    ],
)
def test_variants_that_are_not_known(
    tmp_path: Path, stated: dict[str, Any], change: dict[str, Any], culprit: str
) -> None:
    with pytest.raises(ModelFileError, match=culprit):
        read(tmp_path, stated | change)


def test_granite_4_without_states_is_read_whatever_is_stated_of_them(tmp_path: Path) -> None:
    dense: dict[str, Any] = {
        "architectures": ["GraniteMoeHybridForCausalLM"], "hidden_size": 64, "intermediate_size": 32,
        "layer_types": ["attention"] * 4, "mamba_n_heads": 7, "num_attention_heads": 4, "num_hidden_layers": 4,
        "num_local_experts": 0, "position_embedding_type": "rope", "shared_intermediate_size": 96, "vocab_size": 160,
    }  # fmt: skip
    config = read(tmp_path, dense)
    assert (config.shared_size, config.dense, config.mamba, config.turns) == (96, (0, 1, 2, 3), None, True)
    with pytest.raises(ModelFileError, match="layer_types must name"):
        read(tmp_path, dense | {"layer_types": ["attention"] * 3})
