"""MiniCPM and FM9G, which transformers lacks, against the model written out in float64."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tests.support.stepping import Driver, logprobs_of
from tests.support.tiny_models import TinyShape, interleave, write_folder

from polyfleet.backends.protocol import KernelCapabilities
from polyfleet.engine.choosing.executors import Workload
from polyfleet.executors.eager import EagerExecutor
from polyfleet.loading.load import load_model
from polyfleet.models.registry import record
from polyfleet.wire.options import EngineOptions

Array = NDArray[np.float64]
SHAPE = TinyShape(layers=3)
SCALES = {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 16}


def norm(x: Array, weight: Array) -> Array:
    found: Array = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weight
    return found


def turned(x: Array) -> Array:
    """x [tokens, heads, width], halves turned by position."""
    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None, None] * 10000.0 ** (-np.arange(half) / half)
    first, second = x[..., :half], x[..., half:]
    parts = first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles)
    return np.concatenate(parts, -1)


def attended(x: Array, weights: dict[str, Array]) -> Array:
    heads, kv_heads, width = SHAPE.heads, SHAPE.kv_heads, SHAPE.head_dim
    q, k, v = (x @ weights[f"self_attn.{name}_proj.weight"].T for name in "qkv")
    q, k = turned(q.reshape(len(x), heads, width)), turned(k.reshape(len(x), kv_heads, width))
    k, v = (np.repeat(each.reshape(len(x), kv_heads, width), heads // kv_heads, 1) for each in (k, v))
    scores = np.einsum("thd,shd->hts", q, k) / np.sqrt(width)
    scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    found: Array = np.einsum("hts,shd->thd", shares, v).reshape(len(x), -1) @ weights["self_attn.o_proj.weight"].T
    return found


def reference(tensors: dict[str, Any], ids: list[int], scales: dict[str, float]) -> Array:
    """Logprobs [tokens, vocabulary]."""
    wide = {name.removeprefix("model."): tensor.astype(np.float64) for name, tensor in tensors.items()}
    depth = scales["scale_depth"] / np.sqrt(SHAPE.layers)
    x = wide["embed_tokens.weight"][ids] * scales["scale_emb"]
    for layer in range(SHAPE.layers):
        prefix = f"layers.{layer}."
        mine = {name.removeprefix(prefix): each for name, each in wide.items() if name.startswith(prefix)}
        x = x + attended(norm(x, mine["input_layernorm.weight"]), mine) * depth
        normed = norm(x, mine["post_attention_layernorm.weight"])
        gate, up = normed @ mine["mlp.gate_proj.weight"].T, normed @ mine["mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ mine["mlp.down_proj.weight"].T * depth
    logits = norm(x, wide["norm.weight"]) * scales["dim_model_base"] / SHAPE.hidden @ wide["lm_head.weight"].T
    found: Array = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return found


def logprobs(path: Path, ids: list[int]) -> Array:
    """Behind the last token, which is decoded after the others in one chunk."""
    model = load_model(path)
    capabilities = KernelCapabilities(frozenset({"float32"}), "float32")
    graph = record(model.config, model.weights)
    steps = Driver(EagerExecutor(Workload(graph, model.weights, EngineOptions(), "cpu", "float32", capabilities)), 8)
    run = steps.begin(ids, num_logprobs=SHAPE.vocabulary)
    steps.step([(run, len(ids) - 1)])
    steps.step([(run, 1)])
    return logprobs_of(run.results[-1])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "model", SHAPE)


def state(folder: Path, change: dict[str, Any]) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


IDS = np.random.default_rng(7).integers(0, SHAPE.vocabulary, 24).tolist()


@pytest.mark.parametrize("kind", [("MiniCPMForCausalLM", "minicpm"), ("FM9GForCausalLM", "fm9g")])
def test_scales(folder: Path, kind: tuple[str, str]) -> None:
    state(folder, {"architectures": [kind[0]], "model_type": kind[1], **SCALES})
    expected = reference(load_file(folder / "model.safetensors"), IDS, SCALES)[-1]
    np.testing.assert_allclose(logprobs(folder, IDS), expected, atol=5e-5)


def test_what_is_not_stated_scales_nothing(folder: Path) -> None:
    state(folder, {"architectures": ["FM9GForCausalLM"], "model_type": "fm9g"})
    none = {"scale_emb": 1.0, "scale_depth": SHAPE.layers**0.5, "dim_model_base": float(SHAPE.hidden)}
    expected = reference(load_file(folder / "model.safetensors"), IDS, none)[-1]
    np.testing.assert_allclose(logprobs(folder, IDS), expected, atol=5e-5)


@pytest.mark.parametrize("stated", [True, False])
def test_gguf(folder: Path, tmp_path: Path, stated: bool) -> None:
    """Files of old converters state no scales: they mean MiniCPM 2B's."""
    tensors = load_file(folder / "model.safetensors")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MINICPM, SHAPE.layers)
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "minicpm")
    writer.add_context_length(SHAPE.context)
    writer.add_embedding_length(SHAPE.hidden)
    writer.add_block_count(SHAPE.layers)
    writer.add_feed_forward_length(SHAPE.intermediate)
    writer.add_head_count(SHAPE.heads)
    writer.add_head_count_kv(SHAPE.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(SHAPE.head_dim)
    scales: dict[str, float] = dict(SCALES) if stated else SCALES | {"dim_model_base": 256}
    if stated:
        writer.add_embedding_scale(12.0)
        writer.add_residual_scale(1.4 / SHAPE.layers**0.5)
        writer.add_logit_scale(SHAPE.hidden / 16)
    for name, tensor in tensors.items():
        stem, _, kind = name.rpartition(".")
        turning = stem.endswith(("q_proj", "k_proj"))
        data = interleave(tensor, len(tensor) // SHAPE.head_dim) if turning else tensor
        writer.add_tensor(f"{names.get_name(stem)}.{kind}", data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    np.testing.assert_allclose(logprobs(tmp_path / "model.gguf", IDS), reference(tensors, IDS, scales)[-1], atol=5e-5)
