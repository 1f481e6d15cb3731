"""Configurations of models of earlier years, as publishers write them."""

import math
from pathlib import Path
from typing import Any

import pytest
from tests.support.published_configs import read

from polyfleet.models.errors import ModelFileError
from polyfleet.models.registry import weight_shapes

GPT2: dict[str, Any] = {
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 50256,
    "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
    "resid_pdrop": 0.1, "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True,
    "summary_type": "cls_index", "summary_use_proj": True, "vocab_size": 50257,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
}  # fmt: skip
PYTHIA: dict[str, Any] = {
    "architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "gelu",
    "hidden_size": 512, "initializer_range": 0.02, "intermediate_size": 2048, "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048, "model_type": "gpt_neox", "num_attention_heads": 8, "num_hidden_layers": 6,
    "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": False, "torch_dtype": "float16",
    "use_cache": True, "use_parallel_residual": True, "vocab_size": 50304,
}  # fmt: skip
OPT: dict[str, Any] = {
    "_remove_final_layer_norm": False, "activation_dropout": 0.0, "activation_function": "relu",
    "architectures": ["OPTForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 2, "do_layer_norm_before": True,
    "dropout": 0.1, "eos_token_id": 2, "ffn_dim": 3072, "hidden_size": 768, "init_std": 0.02, "layerdrop": 0.0,
    "max_position_embeddings": 2048, "model_type": "opt", "num_attention_heads": 12, "num_hidden_layers": 12,
    "pad_token_id": 1, "prefix": "</s>", "torch_dtype": "float16", "use_cache": True, "vocab_size": 50272,
    "word_embed_proj_dim": 768,
}  # fmt: skip
STARCODER: dict[str, Any] = {
    "activation_function": "gelu", "architectures": ["GPTBigCodeForCausalLM"], "attention_softmax_in_fp32": True,
    "multi_query": True, "attn_pdrop": 0.1, "bos_token_id": 0, "embd_pdrop": 0.1, "eos_token_id": 0,
    "initializer_range": 0.02, "inference_runner": 0, "layer_norm_epsilon": 1e-05, "max_batch_size": None,
    "max_sequence_length": None, "model_type": "gpt_bigcode", "n_embd": 6144, "n_head": 48, "n_inner": 24576,
    "n_layer": 40, "n_positions": 8192, "pad_key_length": True, "pre_allocate_kv_cache": False, "resid_pdrop": 0.1,
    "scale_attention_softmax_in_fp32": True, "scale_attn_weights": True, "summary_type": "cls_index",
    "use_cache": True, "validate_runner_input": True, "vocab_size": 49152,
}  # fmt: skip
# BERT's Chinese one, of which BGE's and others are made, and a multilingual one, as BGE-M3.
BERT: dict[str, Any] = {
    "architectures": ["BertModel"], "attention_probs_dropout_prob": 0.1, "classifier_dropout": None,
    "directionality": "bidi", "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768,
    "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
    "model_type": "bert", "num_attention_heads": 12, "num_hidden_layers": 12, "output_past": True, "pad_token_id": 0,
    "pooler_fc_size": 768, "pooler_num_attention_heads": 12, "pooler_num_fc_layers": 3, "pooler_size_per_head": 128,
    "pooler_type": "first_token_transform", "position_embedding_type": "absolute", "type_vocab_size": 2,
    "use_cache": True, "vocab_size": 21128,
}  # fmt: skip
BGE_M3: dict[str, Any] = {
    "architectures": ["XLMRobertaModel"], "attention_probs_dropout_prob": 0.1, "bos_token_id": 0, "eos_token_id": 2,
    "classifier_dropout": None, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 1024,
    "initializer_range": 0.02, "intermediate_size": 4096, "layer_norm_eps": 1e-05, "max_position_embeddings": 8194,
    "model_type": "xlm-roberta", "num_attention_heads": 16, "num_hidden_layers": 24, "output_past": True,
    "pad_token_id": 1, "position_embedding_type": "absolute", "type_vocab_size": 1, "use_cache": True,
    "vocab_size": 250002,
}  # fmt: skip


@pytest.mark.parametrize(("stated", "millions"), [(BERT, 101.7), (BGE_M3, 566.7)])
def test_sizes_of_encoders(tmp_path: Path, stated: dict[str, Any], millions: float) -> None:
    """Without the poolers, which are not read."""
    config = read(tmp_path, stated)
    assert sum(map(math.prod, weight_shapes(config).values())) / 1e6 == pytest.approx(millions, rel=1e-3)
    assert config.embeds_only


@pytest.mark.parametrize(("stated", "millions"), [(GPT2, 124.4), (PYTHIA, 70.4), (OPT, 125.2), (STARCODER, 15517)])
def test_sizes(tmp_path: Path, stated: dict[str, Any], millions: float) -> None:
    """As their makers say."""
    config = read(tmp_path, stated)
    assert sum(map(math.prod, weight_shapes(config).values())) / 1e6 == pytest.approx(millions, rel=1e-3)
    assert not config.embeds_only


@pytest.mark.parametrize(
    ("stated", "change", "culprit"),
    [
        (GPT2, {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx = True"),
        (BERT, {"directionality": "left"}, "directionality = 'left'"),
        (GPT2, {"scale_attn_weights": False}, "scale_attn_weights = false"),
        (GPT2, {"add_cross_attention": True}, "add_cross_attention = True"),
        (GPT2, {"activation_function": "relu"}, "the activation 'relu'"),
        (GPT2, {"n_head": 0}, "num_attention_heads must be 1 to"),
        (PYTHIA, {"hidden_act": "relu"}, "the activation 'relu'"),
        (PYTHIA, {"rotary_pct": 1.5}, "partial_rotary_factor"),
        (PYTHIA, {"rope_scaling": {"type": "own", "factor": 2.0}}, "own"),
        (OPT, {"do_layer_norm_before": False}, "do_layer_norm_before = false"),
        (OPT, {"word_embed_proj_dim": 512}, "word_embed_proj_dim = 512"),
        (OPT, {"_remove_final_layer_norm": True}, "_remove_final_layer_norm = true"),
        (OPT, {"enable_bias": False}, "enable_bias = false"),
        (STARCODER, {"activation_function": "relu"}, "the activation 'relu'"),
    ],
)
def test_variants_that_are_not_known(
    tmp_path: Path, stated: dict[str, Any], change: dict[str, Any], culprit: str
) -> None:
    with pytest.raises(ModelFileError, match=culprit):
        read(tmp_path, stated | change)
