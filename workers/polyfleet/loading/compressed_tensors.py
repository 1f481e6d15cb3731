"""Folders in the format of compressed-tensors, which llm-compressor and others write: int4, int8 and fp8.

Each of `config_groups` says for its `targets` how weights are quantised; what is in none of them, or is ignored, is
stored dense. Scales of activations are left aside: activations are not rounded here.
"""

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from polyfleet.kernels.weights import Weight
from polyfleet.loading.quantised_scheme import Parts, Scheme, check_keys, choice, part
from polyfleet.loading.quantised_tensors import INTEGERS, integers, read_fp8, unpack_columns, unpack_rows
from polyfleet.models.fields import Fields

FORMATS = ("dense", "pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision")
STRATEGIES = ("tensor", "channel", "group", "block")
LAYERS = ("Linear", "MoE")  # targets that are a kind of module
HARMLESS = ("quant_method", "version", "quantization_status", "global_compression_ratio", "ignore", "kv_cache_scheme")
ROUNDING = ("dynamic", "observer", "observer_kwargs", "actorder", "scale_dtype", "zp_dtype")


@dataclass(frozen=True, slots=True)
class Group:
    """How the weights of some modules are quantised."""

    targets: tuple[str, ...]
    bits: int
    floating: bool
    strategy: str
    size: int  # of a group, in columns; 0: as there are scales
    tile: list[int] | None

    def names(self, module: str) -> bool:
        """Whether a target is this module, or a pattern of it."""
        return any(
            bool(re.match(target[3:], module)) if target.startswith("re:") else module == target
            for target in self.targets
        )


def read_compressed(section: Fields) -> Scheme:
    """By the `quantization_config`; raises ModelFileError for what is not understood."""
    choice(section, "format", FORMATS, "dense")
    for key in ("sparsity_config", "transform_config"):
        section.read.add(key)
        stated = section.values.get(key) or {}
        if stated and (key == "transform_config" or stated.get("format", "dense") != "dense"):
            raise section.error(f"{key} is not supported: it changes what the weights stand for")
    stated = section.section("config_groups")
    groups = [_group(stated.section(name)) for name in stated.values]
    check_keys(section, HARMLESS)

    def read(name: str, parts: Parts) -> Weight:
        return _read(name, parts, _of(groups, name.removesuffix(".weight")))

    marks = ("_packed", "_scale")
    return Scheme("compressed-tensors", marks, INTEGERS, read)


def _group(section: Fields) -> Group:
    weights = section.section("weights")
    kind = choice(weights, "type", ("int", "float"), "int")
    bits = choice(weights, "num_bits", (4, 8) if kind == "int" else (8,), 8)
    strategy = choice(weights, "strategy", STRATEGIES, "group" if weights.has("group_size") else "tensor")
    size = weights.count("group_size", minimum=-1) if weights.has("group_size") else 0
    tile = weights.items("block_structure") if weights.has("block_structure") else None
    weights.flag("symmetric", True)
    check_keys(weights, ROUNDING)
    choice(section, "format", FORMATS, "dense")
    targets = tuple(map(str, section.items("targets"))) if section.has("targets") else LAYERS
    check_keys(section, ("input_activations", "output_activations"))
    return Group(targets, bits, kind == "float", strategy, max(size, 0) if strategy == "group" else 0, tile)


def _of(groups: list[Group], module: str) -> Group:
    named = [group for group in groups if group.names(module)]
    usual = [group for group in groups if set(LAYERS) & set(group.targets)]
    if not named and not usual:
        raise ValueError("is quantised, and no target of config_groups names it")
    return (named or usual)[0]


def _read(name: str, parts: Parts, group: Group) -> Weight:
    scales = part(parts, "_scale")
    if group.floating:
        return read_fp8(name, parts, group.tile)
    middle = 1 << group.bits - 1
    packed = "_packed" in parts
    codes = _codes(parts, group.bits) if packed else _integers(part(parts, "")).short() + middle
    scales = scales.reshape(1, 1).expand(len(codes), 1) if scales.numel() == 1 else scales.reshape(len(codes), -1)
    if group.size and scales.shape[1] != -(-codes.shape[1] // group.size):
        raise ValueError(f"has scales of {scales.shape[1]} groups, the configuration says {group.size} columns each")
    zeros = _zeros(parts, group.bits, len(codes))
    if zeros is not None:
        zeros = zeros.reshape(1, 1).expand(len(codes), 1) if zeros.numel() == 1 else zeros.reshape(scales.shape)
    return integers(name, group.bits, codes, scales, zeros, parts.get("_g_idx"), group.size)


def _zeros(parts: Parts, bits: int, rows: int) -> Tensor | None:
    """As codes count; packed along the outputs, or numbers."""
    zeros = parts.get("_zero_point")
    if zeros is None:
        return None
    if zeros.dtype is torch.int32 and "_packed" in parts:
        return unpack_rows(zeros, bits)[:rows].short()
    return _integers(zeros).short() + (1 << bits - 1)


def _codes(parts: Parts, bits: int) -> Tensor:
    packed = parts["_packed"]
    if packed.dtype is not torch.int32 or packed.dim() != 2:
        raise ValueError(f"has packed codes of {str(packed.dtype).removeprefix('torch.')}, not int32 in 2 dimensions")
    rows, columns = (int(side) for side in part(parts, "_shape").flatten().tolist())
    codes = unpack_columns(packed, bits)
    if rows != len(codes) or not 0 <= codes.shape[1] - columns < 32 // bits:
        raise ValueError(f"states {rows} x {columns} numbers, its codes are {codes.shape[0]} x {codes.shape[1]}")
    return codes[:, :columns]


def _integers(tensor: Tensor) -> Tensor:
    if tensor.dtype not in (torch.int8, torch.int16, torch.int32, torch.int64):
        raise ValueError(f"has codes of {str(tensor.dtype).removeprefix('torch.')}, not of int8")
    return tensor
