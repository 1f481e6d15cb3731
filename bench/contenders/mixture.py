"""A random GGUF file of Qwen3-MoE's shape, small enough for every machine: what a mixture's decode is measured on."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from bench.contenders.workload import LAST_ID
from numpy.typing import NDArray

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 4, 1024, 16, 4, 64
EXPERTS, CHOSEN, EXPERT_SIZE = 64, 8, 512
VOCABULARY = -(-LAST_ID // 1024) * 1024
FORMS = ("q8_0", "q4_k_m")
Quantisation = gguf.GGMLQuantizationType
# Of a block: bytes, where its halves stand, the standard deviation of what random codes are worth of each, and signs.
HALVES: dict[Any, tuple[tuple[int, float], ...]] = {
    Quantisation.Q8_0: ((0, 1 / 74),),
    Quantisation.Q4_K: ((0, 1 / 258), (2, 7.5 / 258)),  # scales, and minima that centre the codes
    Quantisation.Q6_K: ((208, 1 / 1360),),
}


class _File:
    """A GGUF file that is being written, with random weights."""

    def __init__(self, path: Path) -> None:
        self._rng = np.random.default_rng(0)
        self.writer = gguf.GGUFWriter(path, "qwen3moe")

    def add(self, name: str, *shape: int, kind: Any) -> None:
        self.writer.add_tensor(f"{name}.weight", random_blocks(self._rng, shape, kind), raw_dtype=kind)

    def add_ones(self, name: str, size: int) -> None:
        self.writer.add_tensor(f"{name}.weight", np.ones(size, np.float32))

    def add_router(self, name: str) -> None:
        numbers = self._rng.standard_normal((EXPERTS, HIDDEN), np.float32)
        self.writer.add_tensor(f"{name}.weight", numbers / np.float32(HIDDEN**0.5))


def write_mixture(path: Path, form: str) -> Path:
    """The file, `form` of FORMS: q4_k_m keeps the head, and values and outputs of every second layer, in six bits."""
    plain, fine = (Quantisation.Q8_0,) * 2 if form == "q8_0" else (Quantisation.Q4_K, Quantisation.Q6_K)
    file = _File(path)
    for key, value in _sizes().items():
        file.writer.add_uint32(f"qwen3moe.{key}", value)
    file.writer.add_float32("qwen3moe.attention.layer_norm_rms_epsilon", 1e-6)
    file.writer.add_float32("qwen3moe.rope.freq_base", 1e6)
    file.writer.add_string("tokenizer.ggml.model", "none")
    file.add("token_embd", VOCABULARY, HIDDEN, kind=plain)
    file.add("output", VOCABULARY, HIDDEN, kind=fine)
    file.add_ones("output_norm", HIDDEN)
    for layer in range(LAYERS):
        _add_layer(file, f"blk.{layer}", plain, plain if layer % 2 else fine)
    file.writer.write_header_to_file()
    file.writer.write_kv_data_to_file()
    file.writer.write_tensors_to_file()
    file.writer.close()
    return path


def _add_layer(file: _File, block: str, plain: Any, fine: Any) -> None:
    for name, size in (
        ("attn_norm", HIDDEN),
        ("ffn_norm", HIDDEN),
        ("attn_q_norm", HEAD_DIM),
        ("attn_k_norm", HEAD_DIM),
    ):
        file.add_ones(f"{block}.{name}", size)
    file.add(f"{block}.attn_q", HEADS * HEAD_DIM, HIDDEN, kind=plain)
    file.add(f"{block}.attn_k", KV_HEADS * HEAD_DIM, HIDDEN, kind=plain)
    file.add(f"{block}.attn_v", KV_HEADS * HEAD_DIM, HIDDEN, kind=fine)
    file.add(f"{block}.attn_output", HIDDEN, HEADS * HEAD_DIM, kind=plain)
    file.add_router(f"{block}.ffn_gate_inp")
    file.add(f"{block}.ffn_gate_exps", EXPERTS, EXPERT_SIZE, HIDDEN, kind=plain)
    file.add(f"{block}.ffn_up_exps", EXPERTS, EXPERT_SIZE, HIDDEN, kind=plain)
    file.add(f"{block}.ffn_down_exps", EXPERTS, HIDDEN, EXPERT_SIZE, kind=fine)


def _sizes() -> dict[str, int]:
    return {
        "context_length": 4096,
        "embedding_length": HIDDEN,
        "block_count": LAYERS,
        "feed_forward_length": EXPERT_SIZE,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "rope.dimension_count": HEAD_DIM,
        "expert_count": EXPERTS,
        "expert_used_count": CHOSEN,
        "expert_feed_forward_length": EXPERT_SIZE,
        "vocab_size": VOCABULARY,
    }


def random_blocks(rng: np.random.Generator, shape: tuple[int, ...], kind: Any) -> NDArray[np.uint8]:
    """Blocks of random codes, whose weights have a mean near 0 and keep a row's size."""
    columns, (size, width) = shape[-1], gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (*shape[:-1], columns // size, width), np.uint8)
    for at, worth in HALVES[kind]:
        blocks[..., at : at + 2] = np.array([worth / columns**0.5], np.float16).view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)
