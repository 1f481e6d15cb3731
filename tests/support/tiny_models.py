"""Tiny random Llama models, written as Hugging Face folders and as GGUF files without transformers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel

Array = NDArray[Any]
Tensors = Mapping[str, Array]  # by Hugging Face name

GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@dataclass(frozen=True, slots=True)
class TinyShape:
    """The shape of a tiny model; the defaults have grouped queries and take 60 kB."""

    vocabulary: int = 96
    hidden: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    intermediate: int = 96
    context: int = 256
    tied: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    rope: Mapping[str, Any] | None = None  # rope_parameters of config.json
    eos_token_id: int = 2

    def config(self) -> dict[str, Any]:
        """config.json."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate,
            "max_position_embeddings": self.context,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": self.tied,
            "attention_bias": self.attention_bias,
            "mlp_bias": self.mlp_bias,
            "hidden_act": "silu",
            "rope_parameters": dict(self.rope or {"rope_type": "default", "rope_theta": 10000.0}),
            "bos_token_id": 1,
            "eos_token_id": self.eos_token_id,
        }


def random_tensors(shape: TinyShape, seed: int = 0) -> dict[str, Array]:
    """Float32 weights under Hugging Face names, scaled so that logits differ clearly between tokens."""
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> Array:
        values: Array = random.standard_normal((rows, columns), dtype=np.float32)
        values *= 1.5 / np.sqrt(columns)
        return values

    def vector(size: int, mean: float) -> Array:
        values: Array = random.standard_normal(size, dtype=np.float32)
        values *= 0.2
        values += mean
        return values

    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    linears = {
        "self_attn.q_proj": (query, shape.hidden, shape.attention_bias),
        "self_attn.k_proj": (key, shape.hidden, shape.attention_bias),
        "self_attn.v_proj": (key, shape.hidden, shape.attention_bias),
        "self_attn.o_proj": (shape.hidden, query, shape.attention_bias),
        "mlp.gate_proj": (shape.intermediate, shape.hidden, shape.mlp_bias),
        "mlp.up_proj": (shape.intermediate, shape.hidden, shape.mlp_bias),
        "mlp.down_proj": (shape.hidden, shape.intermediate, shape.mlp_bias),
    }
    tensors = {"model.embed_tokens.weight": matrix(shape.vocabulary, shape.hidden)}
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{name}.weight"] = vector(shape.hidden, 1.0)
        for name, (rows, columns, biased) in linears.items():
            tensors[f"{prefix}{name}.weight"] = matrix(rows, columns)
            if biased:
                tensors[f"{prefix}{name}.bias"] = vector(rows, 0.0)
    tensors["model.norm.weight"] = vector(shape.hidden, 1.0)
    if not shape.tied:
        tensors["lm_head.weight"] = matrix(shape.vocabulary, shape.hidden)
    return tensors


def write_folder(folder: Path, shape: TinyShape, tensors: Tensors | None = None, *, num_shards: int = 1) -> Path:
    """config.json and safetensors, in `num_shards` files with an index if more than one. No tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = random_tensors(shape) if tensors is None else tensors
    (folder / "config.json").write_text(json.dumps(shape.config()))
    if num_shards == 1:
        save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    places = {}
    for shard in range(num_shards):
        name = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
        part = {key: tensor for number, (key, tensor) in enumerate(tensors.items()) if number % num_shards == shard}
        save_file(part, folder / name, metadata={"format": "pt"})
        places.update(dict.fromkeys(part, name))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


def write_gguf(
    path: Path,
    shape: TinyShape,
    form: str = "F32",
    *,
    seed: int = 0,
    extra: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Array] | None = None,
    without: Sequence[str] = (),
) -> Tensors:
    """A GGUF file whose matrices are stored as `form`; returns what it holds, dequantised, under Hugging Face names.

    `extra` metadata (strings, numbers, booleans, lists) replace or join the model's own; `tensors` are further ones
    in float32, `without` names some to leave out, both under GGUF names.
    """
    stored: dict[str, Array] = {}
    writer = gguf.GGUFWriter(path, "llama")
    _write_metadata(writer, shape, extra or {})
    for name, tensor in random_tensors(shape, seed).items():
        heads = shape.heads if ".q_proj." in name else shape.kv_heads if ".k_proj." in name else 0
        data = interleave(tensor, heads) if heads else tensor
        raw, kind = _encode(data, form, seed) if data.ndim == 2 else (data, gguf.GGMLQuantizationType.F32)
        if _gguf_name(name) not in without:
            writer.add_tensor(_gguf_name(name), raw, raw_dtype=kind)
        values = gguf.quants.dequantize(raw, kind).astype(np.float32)
        stored[name] = half_split(values, heads) if heads else values
    for name, tensor in (tensors or {}).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored


def interleave(tensor: Array, heads: int) -> Array:
    """Rows from half-split order (head, half, pair) to GGML's (head, pair, half)."""
    return np.ascontiguousarray(tensor.reshape(heads, 2, -1, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape))


def half_split(tensor: Array, heads: int) -> Array:
    """The reverse of `interleave`."""
    return np.ascontiguousarray(tensor.reshape(heads, -1, 2, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape))


def _write_metadata(writer: Any, shape: TinyShape, extra: Mapping[str, Any]) -> None:
    values: dict[str, Any] = {
        "general.name": "tiny",
        "llama.context_length": shape.context,
        "llama.embedding_length": shape.hidden,
        "llama.block_count": shape.layers,
        "llama.feed_forward_length": shape.intermediate,
        "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.kv_heads,
        "llama.attention.key_length": shape.head_dim,
        "llama.rope.dimension_count": shape.head_dim,
        "llama.rope.freq_base": 10000.0,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
    }
    writer.kv_data[0].pop("general.architecture")  # the writer's own, so that `extra` may replace it
    for key, value in ({"general.architecture": "llama"} | values | dict(extra)).items():
        kind = gguf.GGUFValueType.ARRAY if isinstance(value, list) else gguf.GGUFValueType.get_type(value)
        if isinstance(value, int) and not isinstance(value, bool):
            kind = gguf.GGUFValueType.UINT32
        writer.add_key_value(key, value, kind)


def _encode(data: Array, form: str, seed: int) -> tuple[Array, Any]:
    kind = gguf.GGMLQuantizationType[form]
    if form in ("Q4_K", "Q6_K"):  # the package decodes these but can't encode them
        return random_k_blocks(form, data.shape, np.random.default_rng(seed)), kind
    return gguf.quants.quantize(data, kind), kind


def random_k_blocks(form: str, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    """Random bytes that are valid Q4_K or Q6_K blocks and decode to numbers of about 1 / sqrt(columns)."""
    rows, columns = shape
    block_weights, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[form]]
    blocks = random.integers(0, 256, (rows, columns // block_weights, block_bytes), dtype=np.uint8)
    scales = {"Q4_K": {0: 480.0, 2: 64.0}, "Q6_K": {208: 2400.0}}[form]
    for offset, size in scales.items():
        scale = np.full((rows, columns // block_weights, 1), 1.0 / (size * np.sqrt(columns)), np.float16)
        blocks[..., offset : offset + 2] = scale.view(np.uint8)
    return blocks.reshape(rows, -1)


def _gguf_name(name: str) -> str:
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem, _, kind = name.rpartition(".")
    if stem in names:
        return f"{names[stem]}.{kind}"
    _, _, layer, module = stem.split(".", 3)
    return f"blk.{layer}.{GGUF_NAMES[module]}.{kind}"


def poisoned_model(folder: Path, shape: TinyShape, token_id: int) -> LoadedModel:
    """One whose computation with this token is not finite, as a faulty device's; no file like it would load."""
    tensors = dict(random_tensors(shape))
    table = tensors["model.embed_tokens.weight"].copy()
    table[token_id] = float("nan")
    tensors["model.embed_tokens.weight"] = table
    with patch("polyfleet.loading.shapes._is_finite", return_value=True):
        return load_model(str(write_folder(folder, shape, tensors)))
