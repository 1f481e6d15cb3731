"""Tiny models quantised in every way that folders are, written out in numpy, with what their tensors stand for.

Nothing of the loader is used. Tensors are packed number by number, as the formats' makers describe them.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from tests.support.tiny_models import TinyShape, random_tensors, write_folder

# 160 columns: of no whole number of tiles of 128, or of groups of 64.
SHAPE = TinyShape(layers=1, hidden=160, intermediate=192, head_dim=32)
Floats = NDArray[np.float32]
Codes = NDArray[np.int64]
Stored = dict[str, torch.Tensor]  # by suffix
AWQ_PLACES = (0, 2, 4, 6, 1, 3, 5, 7)  # which of 8 neighbours each nibble of a word has, from its low end on


def pack(codes: Codes, bits: int, order: tuple[int, ...] = ()) -> torch.Tensor:
    """Words of rows of codes."""
    count = 32 // bits
    padded = np.pad(codes, ((0, 0), (0, -codes.shape[1] % count)))
    words = np.zeros((len(codes), padded.shape[1] // count), dtype=np.uint64)
    for place, number in enumerate(order or range(count)):
        words |= padded[:, number::count].astype(np.uint64) << np.uint64(bits * place)
    return torch.from_numpy(words.astype(np.uint32).view(np.int32))


def groups(wide: Floats, size: int) -> list[slice]:
    """The columns of each."""
    return [slice(start, start + size) for start in range(0, wide.shape[1], size)]


def affine(wide: Floats, bits: int, spans: list[Any], *, symmetric: bool) -> tuple[Codes, Floats, Codes, Floats]:
    """Codes [O, I], scales and zeros [O, G], and the numbers that they stand for; scales are half precision's."""
    most = 2**bits - 1
    codes, numbers = np.zeros(wide.shape, dtype=np.int64), np.zeros_like(wide)
    scales, zeros = (np.zeros((len(wide), len(spans)), dtype=kind) for kind in (np.float32, np.int64))
    for number, span in enumerate(spans):
        part = wide[:, span]
        low, high = (-np.abs(part).max(1), np.abs(part).max(1)) if symmetric else (part.min(1), part.max(1))
        scales[:, number] = ((high - low) / most).astype(np.float16)
        zeros[:, number] = (most + 1) // 2 if symmetric else np.clip(np.round(-low / scales[:, number]), 0, most)
        scale, zero = scales[:, number, None], zeros[:, number, None]
        codes[:, span] = np.clip(np.round(part / scale) + zero, 0, most)
        numbers[:, span] = scale * (codes[:, span] - zero)
    return codes, scales, zeros, numbers


def gptq(
    wide: Floats, *, bits: int, size: int, symmetric: bool, less: int, mixed: bool = False
) -> tuple[Stored, Floats]:
    columns = wide.shape[1]
    size = columns if size == -1 else size
    group_of = np.arange(columns) // size
    if mixed:
        group_of = np.random.default_rng(3).permutation(group_of)
    spans = [np.flatnonzero(group_of == number) for number in range(group_of.max() + 1)]
    codes, scales, zeros, numbers = affine(wide, bits, spans, symmetric=symmetric)
    stored = {
        ".qweight": pack(codes, bits).t().contiguous(),
        ".qzeros": pack((zeros.T - less) % 2**bits, bits),
        ".scales": torch.from_numpy(scales.T.copy()).half(),
        ".g_idx": torch.from_numpy(group_of.astype(np.int32)),
    }
    return stored, numbers


def awq(wide: Floats, *, size: int) -> tuple[Stored, Floats]:
    codes, scales, zeros, numbers = affine(wide, 4, groups(wide, size), symmetric=False)
    words = pack(codes.T, 4, AWQ_PLACES), pack(zeros.T, 4, AWQ_PLACES)
    half = torch.from_numpy(scales.T.copy()).half()
    return {".qweight": words[0], ".qzeros": words[1], ".scales": half}, numbers


def packed(wide: Floats, *, bits: int, size: int, symmetric: bool) -> tuple[Stored, Floats]:
    codes, scales, zeros, numbers = affine(wide, bits, groups(wide, size), symmetric=symmetric)
    stored = {
        ".weight_packed": pack(codes, bits),
        ".weight_scale": torch.from_numpy(scales).half(),
        ".weight_shape": torch.tensor(wide.shape),
    }
    if not symmetric:
        stored[".weight_zero_point"] = pack(zeros.T, bits).t().contiguous()
    return stored, numbers


def int8_channels(wide: Floats, *, symmetric: bool) -> tuple[Stored, Floats]:
    codes, scales, zeros, numbers = affine(wide, 8, groups(wide, wide.shape[1]), symmetric=symmetric)
    stored = {".weight": torch.from_numpy(codes - 128).to(torch.int8), ".weight_scale": torch.from_numpy(scales)}
    if not symmetric:
        stored[".weight_zero_point"] = torch.from_numpy(zeros - 128).to(torch.int8)
    return stored, numbers


def fp8(wide: Floats, *, tile: tuple[int, int], scale: str, flat: bool = False) -> tuple[Stored, Floats]:
    """Tiles of [outputs, inputs], 0: all of them."""
    rows, columns = (each or size for each, size in zip(tile, wide.shape, strict=True))
    codes, numbers = torch.zeros(wide.shape, dtype=torch.float8_e4m3fn), np.zeros_like(wide)
    scales = np.zeros((-(-wide.shape[0] // rows), -(-wide.shape[1] // columns)), dtype=np.float32)
    for down in range(scales.shape[0]):
        for across in range(scales.shape[1]):
            place = slice(down * rows, (down + 1) * rows), slice(across * columns, (across + 1) * columns)
            scales[down, across] = np.abs(wide[place]).max() / 448
            codes[place] = torch.from_numpy(wide[place] / scales[down, across]).to(torch.float8_e4m3fn)
            numbers[place] = codes[place].float().numpy() * scales[down, across]
    found = torch.from_numpy(scales)
    return {".weight": codes, scale: found.flatten() if flat else found, ".input_scale": torch.ones(1)}, numbers


def stated(kind: str, **weights: Any) -> dict[str, Any]:
    """Of compressed-tensors."""
    usual = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32, "dynamic": False}
    group = {"targets": ["Linear"], "weights": usual | weights, "input_activations": None, "output_activations": None}
    usual = {"quant_method": "compressed-tensors", "quantization_status": "compressed", "ignore": ["lm_head"]}
    return usual | {"format": kind, "config_groups": {"group_0": group}, "kv_cache_scheme": None}


@dataclass(frozen=True, slots=True)
class Way:
    """One way to quantise: what config.json says, and of a matrix its tensors and what they stand for."""

    config: Mapping[str, Any]
    make: Callable[[Floats], tuple[Stored, Floats]]
    form: str = "INT4"  # of weights when they are loaded
    extra: Mapping[str, Any] = field(default_factory=dict)


def _gptq(form: str = "INT4", **made: Any) -> Way:
    config = {"quant_method": "gptq", "bits": made["bits"], "group_size": made["size"], "sym": made["symmetric"]}
    config |= {"desc_act": made.get("mixed", False), "checkpoint_format": "gptq" if made["less"] else "gptq_v2"}
    return Way(config | {"damp_percent": 0.1, "lm_head": False}, lambda wide: gptq(wide, **made), form)


def _fp8(config: Mapping[str, Any], form: str = "FP8", **made: Any) -> Way:
    return Way(config, lambda wide: fp8(wide, **made), form)


TILES = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
PLAIN_FP8 = {"quant_method": "fp8", "activation_scheme": "static", "modules_to_not_convert": ["lm_head"]}
FLOAT = {"type": "float", "num_bits": 8, "group_size": None}
WAYS: Mapping[str, Way] = {
    "gptq": _gptq(bits=4, size=32, symmetric=True, less=1),
    "gptq v2 with zeros": _gptq(bits=4, size=32, symmetric=False, less=0),
    "gptq with zeros": _gptq("INT4", bits=4, size=32, symmetric=False, less=1),
    "gptq 8 bits, columns": _gptq("INT8", bits=8, size=-1, symmetric=True, less=1),
    "gptq 8 bits with zeros": _gptq("INT8", bits=8, size=32, symmetric=False, less=0),
    "gptq in another order": _gptq("F16", bits=4, size=32, symmetric=True, less=1, mixed=True),
    "gptq with a group in part": _gptq(bits=4, size=128, symmetric=True, less=1),
    "awq": Way(
        {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True},
        lambda wide: awq(wide, size=32),
    ),
    "int4 groups": Way(stated("pack-quantized"), lambda wide: packed(wide, bits=4, size=32, symmetric=True)),
    "int4 groups with zeros": Way(
        stated("pack-quantized", symmetric=False), lambda wide: packed(wide, bits=4, size=32, symmetric=False)
    ),
    "int8 packed channels": Way(
        stated("pack-quantized", num_bits=8, strategy="channel", group_size=None),
        lambda wide: packed(wide, bits=8, size=wide.shape[1], symmetric=True),
        "INT8",
    ),
    "int8 channels": Way(
        stated("int-quantized", num_bits=8, strategy="channel", group_size=None),
        lambda wide: int8_channels(wide, symmetric=True),
        "INT8",
    ),
    "int8 channels with zeros": Way(
        stated("int-quantized", num_bits=8, strategy="channel", group_size=None, symmetric=False),
        lambda wide: int8_channels(wide, symmetric=False),
        "INT8",
    ),
    "fp8 tiles": _fp8(TILES, tile=(128, 128), scale=".weight_scale_inv"),
    "fp8 tensors": _fp8(PLAIN_FP8, tile=(0, 0), scale=".weight_scale", flat=True),
    "fp8 channels": _fp8(
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, tile=(1, 0), scale=".weight_scale"
    ),
    "float channels": _fp8(stated("float-quantized", **FLOAT, strategy="channel"), tile=(1, 0), scale=".weight_scale"),
    "float tiles": _fp8(
        stated("float-quantized", **FLOAT, strategy="block", block_structure=[128, 128]),
        tile=(128, 128),
        scale=".weight_scale",
    ),
    "float tensors": _fp8(stated("float-quantized", **FLOAT, strategy="tensor"), tile=(0, 0), scale=".weight_scale"),
}


def write_quantised(folder: Path, way: Way, dense: Path | None = None) -> dict[str, Floats]:
    """The model in the folder, its layers' matrices quantised; in float32 in `dense`, whose tensors it gives."""
    tensors, stored = random_tensors(SHAPE), Stored()
    for name, tensor in list(tensors.items()):
        if "_proj." not in name:
            stored[name] = torch.from_numpy(tensor)
            continue
        parts, tensors[name] = way.make(tensor)
        stored |= {name.removesuffix(".weight") + suffix: part.contiguous() for suffix, part in parts.items()}
    write_folder(folder, SHAPE, {})
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(SHAPE.config() | {"quantization_config": dict(way.config)}))
    if dense is not None:
        write_folder(dense, SHAPE, tensors)
    return tensors
