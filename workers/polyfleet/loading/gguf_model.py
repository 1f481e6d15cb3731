"""From a GGUF file to configuration, weights and tokenizer assets."""

import re
from collections.abc import Mapping
from pathlib import Path

import torch

from polyfleet.kernels.quantisation import DENSE_DTYPES, row_bytes
from polyfleet.kernels.weights import Weight
from polyfleet.loading.fields import Fields
from polyfleet.loading.gguf_file import GgufFile, TensorInfo, read_gguf
from polyfleet.loading.gguf_metadata import check_file_metadata, check_model_metadata
from polyfleet.loading.gguf_tokenizer import gguf_tokenizer
from polyfleet.loading.gguf_vocabulary import gguf_end_tokens
from polyfleet.loading.model import LoadedModel
from polyfleet.loading.progress import Progress
from polyfleet.loading.rope import inverse_frequencies
from polyfleet.loading.shapes import MAX_HEAD_DIM, check_config, check_weights
from polyfleet.models.config import ModelConfig

GLOBAL_NAMES: Mapping[str, str] = {
    "token_embd.weight": "embedding",
    "output_norm.weight": "norm",
    "output.weight": "lm_head",
}
LAYER_NAMES: Mapping[str, str] = {
    "attn_norm": "attention_norm",
    "attn_q": "q",
    "attn_k": "k",
    "attn_v": "v",
    "attn_output": "o",
    "ffn_norm": "mlp_norm",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
}
LAYER_TENSOR = re.compile(r"blk\.(\d+)\.([a-z_]+)\.(weight|bias)")
MAX_ROPE_FACTOR = 2.0**20
ROPE_FACTORS = "rope_freqs.weight"  # divisors of the inverse frequencies: how GGUF states Llama 3's scaling


def load_gguf(path: str, progress: Progress) -> LoadedModel:
    """Load the file; raises ModelFileError."""
    file = read_gguf(path)
    fields = Fields(path, file.metadata)
    config = read_config(file, fields)
    check_config(path, config, len(file.tensors))
    check_model_metadata(fields, config)
    weights: dict[str, Weight] = {}
    for number, info in enumerate(file.tensors.values()):
        if info.name != ROPE_FACTORS:
            weight = _weight(file, info, config)
            weights[weight.name] = weight
        progress((number + 1) / len(file.tensors))
    check_weights(path, config, weights)
    return LoadedModel(path, config, weights, gguf_tokenizer(fields, config.vocabulary_size))


def read_config(file: GgufFile, fields: Fields) -> ModelConfig:
    """The model's configuration from metadata and tensor directory."""
    check_file_metadata(fields)
    hidden, heads = fields.count("llama.embedding_length"), fields.count("llama.attention.head_count")
    embedding = file.tensors.get("token_embd.weight")
    return ModelConfig(
        architecture="llama",
        name=fields.text("general.name", Path(file.path).stem),
        vocabulary_size=embedding.rows if embedding else fields.count("llama.vocab_size"),
        hidden_size=hidden,
        num_layers=fields.count("llama.block_count"),
        num_heads=heads,
        num_kv_heads=fields.count("llama.attention.head_count_kv", heads),
        head_dim=fields.count("llama.attention.key_length", max(1, hidden // heads), maximum=MAX_HEAD_DIM),
        intermediate_size=fields.count("llama.feed_forward_length"),
        norm_eps=fields.positive("llama.attention.layer_norm_rms_epsilon"),
        inverse_frequencies=_frequencies(file, fields, max(1, hidden // heads)),
        context_length=fields.count("llama.context_length"),
        tied_embeddings="output.weight" not in file.tensors,
        attention_bias="blk.0.attn_q.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
        end_token_ids=gguf_end_tokens(fields),
    )


def _frequencies(file: GgufFile, fields: Fields, default_head_dim: int) -> tuple[float, ...]:
    head_dim = fields.count("llama.attention.key_length", default_head_dim, maximum=MAX_HEAD_DIM)
    rotated = fields.count("llama.rope.dimension_count", head_dim)
    if rotated != head_dim:
        raise fields.error(f"rotating {rotated} of {head_dim} dimensions of a head is not supported")
    frequencies = inverse_frequencies(head_dim, fields.positive("llama.rope.freq_base", 10000.0))
    factor = _linear_factor(fields)
    frequencies = tuple(frequency / factor for frequency in frequencies)
    if ROPE_FACTORS in file.tensors:
        factors = _tensor(file, file.tensors[ROPE_FACTORS]).flatten().tolist()
        if len(factors) != len(frequencies) or not all(factor > 0 for factor in factors):
            raise fields.error(f"tensor {ROPE_FACTORS!r} must hold {len(frequencies)} numbers over 0")
        frequencies = tuple(frequency / factor for frequency, factor in zip(frequencies, factors, strict=True))
    return frequencies


def _linear_factor(fields: Fields) -> float:
    """What positions are divided by: stated under a new key or an old one, which count unless the type is `none`."""
    scaling = fields.text("llama.rope.scaling.type", "linear")
    if scaling not in ("none", "linear"):
        raise fields.error(f"rope scaling {scaling!r} is not supported (supported: none, linear, rope_freqs)")
    keys = ("llama.rope.scaling.factor", "llama.rope.scale_linear")
    stated = [fields.number(key, 0, MAX_ROPE_FACTOR) for key in keys if fields.has(key)]
    return 1.0 if scaling == "none" or not stated else stated[0] or 1.0  # 0 says: as it is


def _weight(file: GgufFile, info: TensorInfo, config: ModelConfig) -> Weight:
    """One tensor under its graph name; rows of q and k go from GGML's interleaved rope order to half-split."""
    name = _graph_name(info.name) or f"unknown.{info.name}"
    data, rows, columns = _tensor(file, info), info.rows, info.columns
    kind = name.removesuffix(".bias").rpartition(".")[2]
    if kind in ("q", "k"):
        heads = config.num_heads if kind == "q" else config.num_kv_heads
        data = _half_split(data, heads, config.head_dim, vector=name.endswith(".bias"))
    return Weight(name, info.format, rows, columns, data)


def _graph_name(name: str) -> str | None:
    if name in GLOBAL_NAMES:
        return GLOBAL_NAMES[name]
    match = LAYER_TENSOR.fullmatch(name)
    if match is None or match[2] not in LAYER_NAMES:
        return None
    return f"layers.{match[1]}.{LAYER_NAMES[match[2]]}" + (".bias" if match[3] == "bias" else "")


def _tensor(file: GgufFile, info: TensorInfo) -> torch.Tensor:
    """A view of the mapped file: numbers, or raw blocks as bytes."""
    if info.size == 0:
        return torch.empty((info.rows, 0), dtype=torch.uint8)
    raw = torch.frombuffer(file.buffer, dtype=torch.uint8, count=info.size, offset=info.offset)
    if info.format.quantised:
        return raw.view(info.rows, row_bytes(info.format, info.columns))
    return raw.view(DENSE_DTYPES[info.format]).view(info.rows, info.columns)


def _half_split(data: torch.Tensor, heads: int, head_dim: int, *, vector: bool) -> torch.Tensor:
    """Rows (of a vector: columns) ordered (head, pair, member) become (head, member, pair)."""
    rows = data.view(-1, 1) if vector else data
    if len(rows) != heads * head_dim:
        return data  # the wrong shape is reported by check_weights
    return rows.view(heads, head_dim // 2, 2, -1).transpose(1, 2).reshape(data.shape)
