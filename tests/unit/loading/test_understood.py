"""What could change a model's numbers and is not understood is refused by name; what describes it is let through."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.tiny_models import TinyShape, write_folder, write_gguf
from tests.support.tiny_tokenizers import byte_level_metadata, sentencepiece_metadata

from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel, ModelFileError

SHAPE = TinyShape(vocabulary=300)


def gguf_with(tmp_path: Path, extra: dict[str, Any]) -> LoadedModel:
    write_gguf(tmp_path / "model.gguf", SHAPE, extra=extra)
    return load_model(tmp_path / "model.gguf")


def folder_with(tmp_path: Path, change: dict[str, Any]) -> LoadedModel:
    folder = write_folder(tmp_path / "model", SHAPE)
    config = json.loads((folder / "config.json").read_text()) | change
    (folder / "config.json").write_text(json.dumps(config))
    return load_model(folder)


def test_dual_chunk_attention_is_served_up_to_its_first_chunk(tmp_path: Path) -> None:
    """Where it is plain attention, as in vLLM; transformers' is plain everywhere."""
    for chunks, length in (
        ({"chunk_size": 96, "local_size": 32}, 64),
        ({"chunk_size": 96, "local_size": 32, "original_max_position_embeddings": 48}, 48),
        ({"chunk_size": 512, "local_size": 32, "original_max_position_embeddings": 512}, 256),
        (None, 256),
    ):
        assert folder_with(tmp_path, {"dual_chunk_attention_config": chunks}).config.context_length == length
    for wrong, problem in (
        ({"chunk_size": 32, "local_size": 32}, r"chunk_size must be over local_size \(32\), not 32"),
        ({"chunk_size": "x"}, "chunk_size must be a whole number"),
        ([8192], "dual_chunk_attention_config must be an object"),
    ):
        with pytest.raises(ModelFileError, match=problem):
            folder_with(tmp_path, {"dual_chunk_attention_config": wrong})


GGUF_REFUSED: dict[str, Any] = {
    "llama.attention.sliding_window": 64,
    "llama.attention.scale": 0.5,
    "llama.attention.clamp_kqv": 8.0,
    "llama.attention.max_alibi_bias": 8.0,
    "llama.attention.causal": False,
    "llama.attention.value_length": 8,
    "llama.attention.temperature_scale": 0.1,
    "llama.attention.shared_kv_layers": 1,
    "llama.attn_logit_softcapping": 50.0,
    "llama.final_logit_softcapping": 30.0,
    "llama.logit_scale": 0.25,
    "llama.residual_scale": 0.22,
    "llama.embedding_scale": 12.0,
    "llama.rope.scaling.attn_factor": 1.2,
    "llama.rope.scaling.alpha": 1000.0,
    "llama.rope.scaling.yarn_log_multiplier": 0.1,
    "llama.rope.scaling.yarn_ext_factor": 1.0,
    "llama.rope.scaling.yarn_beta_fast": 16.0,
    "llama.rope.dimension_sections": [8, 8],
    "llama.rope.freq_base_swa": 1e4,
    "llama.expert_used_count": 2,
    "llama.use_parallel_residual": True,
    "llama.tensor_data_layout": "another",
    "llama.something.new": 1,
}
GGUF_NEUTRAL: dict[str, Any] = {
    "llama.attention.sliding_window": 256,  # the context
    "llama.attention.scale": 0.25,  # head_dim ** -0.5
    "llama.attention.clamp_kqv": 0.0,
    "llama.attention.causal": True,
    "llama.attention.value_length": 16,
    "llama.attention.layer_norm_epsilon": 1e-5,
    "llama.final_logit_softcapping": 0.0,
    "llama.logit_scale": 1.0,
    "llama.rope.scaling.attn_factor": 1.0,
    "llama.rope.scaling.original_context_length": 128,
    "llama.rope.scaling.finetuned": True,
    "llama.expert_count": 0,
    "llama.expert_used_count": 0,
    "llama.use_parallel_residual": False,
    "llama.tensor_data_layout": "Meta AI original pth",
    "llama.vocab_size": 300,
    "other.attention.sliding_window": 8,
    "general.something": "new",
    "general.file_type": 2,
    "general.quantization_version": 2,
    "quantize.imatrix.file": "imatrix.dat",
}


@pytest.mark.parametrize("key", GGUF_REFUSED)
def test_gguf_keys_that_change_numbers(tmp_path: Path, key: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        gguf_with(tmp_path, {key: GGUF_REFUSED[key]})
    assert str(caught.value).startswith(f"{tmp_path / 'model.gguf'}: {key} = ")


def test_gguf_keys_that_change_nothing(tmp_path: Path) -> None:
    assert gguf_with(tmp_path, GGUF_NEUTRAL).config == gguf_with(tmp_path, {}).config


@pytest.mark.parametrize("kind", ["adapter", "imatrix", "mmproj", "vocab"])
def test_gguf_files_that_hold_no_model(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ModelFileError, match=f"general.type is '{kind}'"):
        gguf_with(tmp_path, {"general.type": kind})


def test_gguf_blocks_of_another_meaning(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"general\.quantization_version 1 is not supported"):
        gguf_with(tmp_path, {"general.quantization_version": 1})


@pytest.mark.parametrize(
    ("extra", "divisor"),
    [
        ({"rope.scale_linear": 4.0}, 4),
        ({"rope.scale_linear": 0.0}, 1),
        ({"rope.scaling.factor": 2.0}, 2),  # linear when no type is stated, as in llama.cpp
        ({"rope.scaling.factor": 2.0, "rope.scale_linear": 4.0}, 2),
        ({"rope.scaling.type": "linear", "rope.scale_linear": 4.0}, 4),
        ({"rope.scaling.type": "linear"}, 1),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 2.0}, 1),
    ],
)
def test_gguf_linear_rope_scaling_under_each_key(tmp_path: Path, extra: dict[str, Any], divisor: float) -> None:
    config = gguf_with(tmp_path, {f"llama.{key}": value for key, value in extra.items()}).config
    assert config.inverse_frequencies == pytest.approx([10000 ** (-i / 8) / divisor for i in range(8)])


@pytest.mark.parametrize("value", [-2.0, float("nan"), float("inf"), "4"])
def test_gguf_rope_scaling_that_is_no_factor(tmp_path: Path, value: Any) -> None:
    with pytest.raises(ModelFileError, match=r"llama\.rope\.scale_linear must be"):
        gguf_with(tmp_path, {"llama.rope.scale_linear": value})


@pytest.mark.parametrize(
    ("metadata", "key", "value"),
    [
        (sentencepiece_metadata(), "remove_extra_whitespaces", True),
        (sentencepiece_metadata(), "treat_whitespace_as_suffix", True),
        (sentencepiece_metadata(), "escape_whitespaces", False),
        (sentencepiece_metadata(), "precompiled_charsmap", [1, 2]),
        (sentencepiece_metadata(), "suppress_tokens", [7]),
        (byte_level_metadata(), "add_space_prefix", True),
        (byte_level_metadata(), "escape_whitespaces", True),
        (byte_level_metadata(), "normalizer.lowercase", True),
    ],
)
def test_gguf_tokenizer_keys_that_change_tokens(tmp_path: Path, metadata: dict[str, Any], key: str, value: Any) -> None:
    with pytest.raises(ModelFileError, match=f"tokenizer.ggml.{key} = .* is not supported"):
        gguf_with(tmp_path, metadata | {f"tokenizer.ggml.{key}": value})
    if not isinstance(value, list):
        assert gguf_with(tmp_path, metadata | {f"tokenizer.ggml.{key}": not value}).tokenizer is not None


CONFIG_REFUSED: dict[str, Any] = {
    "sliding_window": 64,
    "layer_types": ["sliding_attention", "full_attention"],
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "logit_scale": 0.0625,
    "logits_scaling": 8.0,
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.5,
    "scale_emb": 12,
    "scale_depth": 1.4,
    "query_pre_attn_scalar": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "clip_qkv": 8.0,
    "alibi": True,
    "use_qk_norm": True,
    "num_local_experts": 8,
    "experts_per_token": 2,
    "no_rope_layers": [1, 0],
    "attention_chunk_size": 8192,
    "position_embedding_type": "alibi",
    "rope_interleaved": True,
    "is_causal": False,
    "directionality": "bidi",
    "is_encoder_decoder": True,
    "quantization": {"group_size": 64, "bits": 4},
    "compression_config": {"format": "int-quantized"},
    "text_config": {"hidden_size": 64},
    "num_sink_tokens": 4,
    "activation": "gelu",
    "norm_eps": 1e-6,
    "something_new": 1,
}
CONFIG_NEUTRAL: dict[str, Any] = {
    "sliding_window": 256,
    "use_sliding_window": False,
    "max_window_layers": 2,
    "layer_types": ["full_attention", "full_attention"],
    "attn_logit_softcapping": None,
    "logit_scale": 1.0,
    "embedding_multiplier": 1,
    "attention_multiplier": 0.25,
    "query_pre_attn_scalar": 16,
    "hidden_activation": "silu",
    "num_local_experts": 0,
    "rope_interleaved": False,
    "rope_scaling": None,
    "activation": "swiglu",
    "norm_eps": 1e-5,
    "pretraining_tp": 2,
    "attention_dropout": 0.1,
}
# As publishers write them.
BOOKKEEPING: dict[str, Any] = {
    "_name_or_path": "meta-llama/Llama-3.2-1B", "_attn_implementation_autoset": True, "transformers_version": "4.45.0",
    "torch_dtype": "bfloat16", "dtype": "bfloat16", "use_cache": True, "auto_map": {"AutoModel": "modeling.X"},
    "initializer_range": 0.02, "is_llama_config": True, "pad_token_id": 0, "unsloth_fixed": True,
    "transformers.js_config": {"dtype": "q4"}, "tokenizer_class": "LlamaTokenizer", "max_sequence_length": 2048,
    "use_fused_rope": True, "fuse_attention_qkv": True, "use_flash_attention": True, "use_sdpa": True, "alibi": False,
    "attention_probs_dropout_prob": 0.1, "hidden_dropout_prob": 0.1, "use_recompute": True, "virtual_pp_degree": 1,
    "rope_scaling_factor": 1.0, "rope_scaling_type": None, "torchscript": False, "return_dict": True, "top_k": 50,
    "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "task_specific_params": None, "pruned_heads": {},
    "chunk_size_feed_forward": 0, "is_encoder_decoder": False, "is_decoder": False, "temperature": 1.0,
    "suppress_tokens": None, "max_length": 20, "architectures": ["LlamaForCausalLM"], "license": "apache-2.0",
    "gradient_checkpointing": True, "model_max_length": 4096, "tie_encoder_decoder": False, "quantization_config": None,
    "eos_token": "</s>", "image_token_index": 7, "unsloth_version": "1", "original_max_position_embeddings": 128,
    "output_past": True, "use_return_dict": True, "predict_special_tokens": True,
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIG_REFUSED)
def test_fields_of_a_configuration_that_change_numbers(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        folder_with(tmp_path, {name: CONFIG_REFUSED[name]})
    assert str(caught.value).startswith(f"{tmp_path}/model/config.json: {name} = ")


@pytest.mark.parametrize("change", [CONFIG_NEUTRAL, BOOKKEEPING, {"sliding_window": 8, "use_sliding_window": False}])
def test_fields_of_a_configuration_that_change_nothing(tmp_path: Path, change: dict[str, Any]) -> None:
    assert folder_with(tmp_path, change).config == folder_with(tmp_path, {}).config


@pytest.mark.parametrize("name", ["logit_scale", "embedding_multiplier", "residual_multiplier"])
def test_a_scale_of_0_is_not_taken_for_none(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelFileError, match=f"{name} = 0 is not supported"):
        folder_with(tmp_path, {name: 0})


@pytest.mark.parametrize("kind", ["ntk", "mrope", "proportional"])
@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
def test_rope_of_another_kind(tmp_path: Path, key: str, kind: str) -> None:
    change = {"rope_parameters": None, key: {"type": kind, "factor": 2.0}}
    with pytest.raises(ModelFileError, match=f"{key}: rope scaling '{kind}' is not supported"):
        folder_with(tmp_path, change)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rope_parameters": {"factor": 2.0}}, "factor = 2.0 is not supported with rope scaling 'default'"),
        ({"rope_parameters": {"xpos": True}}, "xpos = True is not supported with rope scaling 'default'"),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "attention_factor": 1.2}},
            "attention_factor = 1.2",
        ),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "full_attention = {'rope_theta': 10000.0}"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "rotating a part of each head"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_parameters and rope_scaling contradict each other"),
    ],
)
def test_rope_that_is_half_understood(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        folder_with(tmp_path, change)
    assert reason in str(caught.value)


def test_rope_that_is_stated_twice_alike(tmp_path: Path) -> None:
    both = {
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4},
        "rope_scaling": {"type": "linear", "factor": 2.0},
    }
    assert folder_with(tmp_path, both).config.inverse_frequencies[0] == 0.5


def test_both_activations_of_gemma_2_are_understood(tmp_path: Path) -> None:
    """Published folders state the one that transformers does not read, too."""
    stated = {
        "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh", "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
        "query_pre_attn_scalar": 256, "sliding_window": 4096, "sliding_window_size": 4096,
        "cache_implementation": "hybrid",
    }  # fmt: skip
    with pytest.raises(ModelFileError, match=r"the tensor for '.*' is missing"):  # the configuration itself is fine
        folder_with(tmp_path, stated)
