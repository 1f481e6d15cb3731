"""Folders of models that see images too: of a text they come to what transformers comes to."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.batching import over
from tests.support.tiny_architectures import COMMON, LATENT
from tests.support.tiny_hybrids import DELTA
from tests.support.tiny_kinds import VOCABULARY

from polyfleet.backends.protocol import KernelCapabilities
from polyfleet.engine.batching.batch import BatchLimits
from polyfleet.engine.choosing.executors import Workload
from polyfleet.executors.eager import EagerExecutor
from polyfleet.loading.load import load_model
from polyfleet.loading.model import ModelFileError
from polyfleet.models.registry import record
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import SequenceRequest

TEXT: dict[str, Any] = {**COMMON, "num_hidden_layers": 2, "head_dim": 16}
SEEING: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
IMAGES = {"image_size": 28, "patch_size": 14}
QWEN = {"depth": 1, "num_heads": 2, "patch_size": 14}
ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
DEEP: dict[str, Any] = {
    **QWEN,
    "hidden_size": 32,
    "intermediate_size": 32,
    "out_hidden_size": 64,
    "num_position_embeddings": 16,
}
DEEP |= {"deepstack_visual_indexes": [0]}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gemma3": ({**TEXT, "sliding_window": 12, "query_pre_attn_scalar": 16}, {**SEEING, **IMAGES}),
    "mistral3": ({**TEXT, "model_type": "mistral"}, {**SEEING, **IMAGES, "model_type": "pixtral", "head_dim": 16}),
    "lfm2_vl": (
        {**TEXT, "model_type": "lfm2", "layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
        {**SEEING, "model_type": "siglip2_vision_model", "patch_size": 14, "num_patches": 16},
    ),
    "llama4": (
        {
            **{**TEXT, "num_local_experts": 4, "intermediate_size": 32, "intermediate_size_mlp": 96},
            **{"attention_chunk_size": 256, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        },
        {
            **{**SEEING, **IMAGES, "vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32},
            **{"pixel_shuffle_ratio": 0.5},
        },
    ),
    "kimi_k25": (
        {**COMMON, **LATENT, "model_type": "deepseek_v3", "num_hidden_layers": 2, "q_lora_rank": 48},
        {**SEEING, "patch_size": 14, "pos_emb_height": 4, "pos_emb_width": 4},
    ),
    "qwen2_vl": ({**TEXT, "rope_parameters": ROPE}, {**QWEN, "embed_dim": 32, "hidden_size": 64}),
    "qwen3_vl": ({**TEXT, "rope_parameters": ROPE}, DEEP),
    "qwen3_vl_moe": (
        {
            **{**TEXT, "rope_parameters": ROPE, "num_experts": 4, "num_experts_per_tok": 2},
            **{"moe_intermediate_size": 48, "decoder_sparse_step": 1},
        },
        DEEP,
    ),
    "qwen3_5": (
        {**TEXT, **DELTA, "layer_types": ["linear_attention", "full_attention"]},
        {**QWEN, "hidden_size": 32, "intermediate_size": 32, "out_hidden_size": 64, "num_position_embeddings": 16},
    ),
}
SLOW = ("mistral3", "llama4", "lfm2_vl", "kimi_k25", "qwen2_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5")


def turn_stacks(folder: Path) -> None:
    """As published: experts lie columns first, which transformers undoes when it reads them."""
    tensors = load_file(folder / "model.safetensors")
    stacks = {name: tensor.mT.contiguous() for name, tensor in tensors.items() if ".experts." in name}
    assert stacks
    save_file(tensors | stacks, folder / "model.safetensors", metadata={"format": "pt"})


def name_layers(folder: Path) -> None:
    """As published: transformers gives the text part's layers the name of those that see when it writes them."""
    tensors = load_file(folder / "model.safetensors")
    renamed = {
        name.replace("language_model.model.blocks.", "language_model.model.layers."): tensors[name] for name in tensors
    }
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    "kind",
    [pytest.param(each, marks=[pytest.mark.slow] * (each in SLOW)) for each in (*KINDS, "qwen3_vl_moe, published")],
)
def test_the_text_part_is_loaded(kind: str, tmp_path: Path) -> None:
    import transformers

    kind, _, published = kind.partition(", ")
    text, seeing = KINDS[kind]
    more = {"mm_tokens_per_image": 4} if kind == "gemma3" else {}
    config = transformers.AutoConfig.for_model(kind, text_config=text, vision_config=seeing, **more)
    torch.manual_seed(3)
    reference = transformers.AutoModelForImageTextToText.from_config(config, attn_implementation="eager").float().eval()
    reference.save_pretrained(tmp_path)
    if published:
        turn_stacks(tmp_path)
    if kind == "kimi_k25":
        name_layers(tmp_path)
    model = load_model(tmp_path)
    capabilities = KernelCapabilities(frozenset({"float32"}), "float32")
    graph = record(model.config, model.weights)
    executor: Any = EagerExecutor(Workload(graph, model.weights, EngineOptions(), "cpu", "float32", capabilities))
    batcher = over(executor, BatchLimits(2, 32, 64, prefix_cache=False), num_blocks=8, block_size=16)
    prompt = np.random.default_rng(3).integers(11, VOCABULARY, 30).tolist()
    batcher.add(SequenceRequest("one", tuple(prompt), max_tokens=1, ignore_eos=True, logprobs=VOCABULARY))
    (update,) = batcher.step().updates
    if kind == "llama4":
        reference = reference.language_model  # transformers' whole fails on a result's name
    with torch.inference_mode():
        expected = torch.log_softmax(reference(input_ids=torch.tensor([prompt])).logits[0, -1].double(), -1).numpy()
    (token,) = update.tokens
    np.testing.assert_allclose(token.top_logprobs, expected[list(token.top_ids)], atol=2e-4, rtol=0)
    executor.close()


def test_others_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["LlavaForConditionalGeneration"], "text_config": {}}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelFileError, match="the architecture LlavaForConditionalGeneration is not supported"):
        load_model(tmp_path)
