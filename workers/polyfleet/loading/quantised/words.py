"""Weights of the tensors that GPTQ, AWQ and compressed-tensors write: words of codes, their scales and zeros.

All raise ValueError for what is wrong.
"""

import torch
from torch import Tensor

from polyfleet.kernels.weights.weight import Weight
from polyfleet.loading.quantised.scheme import Group, Parts, part
from polyfleet.loading.quantised.tensors import integers, read_fp8, unpack_columns, unpack_rows

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # the place in a word of each of 8 neighbours


def read_gptq(name: str, parts: Parts, bits: int, group: int, *, symmetric: bool, more: int) -> Weight:
    """`group` columns share a scale, -1: all of a row; zeros are `more` than is stored."""
    codes = unpack_rows(_words(part(parts, ".qweight")), bits).t().contiguous()
    scales = part(parts, ".scales").t().contiguous()
    zeros = parts.get(".qzeros")
    if zeros is None and not symmetric:
        raise ValueError("has no zeros (.qzeros)")
    wide = None if zeros is None else unpack_columns(_words(zeros), bits).t().short() + more
    _check_groups(codes.shape[1], scales.shape[1], group)
    return integers(name, bits, codes, scales, wide, parts.get(".g_idx"), max(group, 0))


def read_awq(name: str, parts: Parts, bits: int, group: int) -> Weight:
    """`group` columns share a scale and a zero, -1: all of a row."""
    codes = unpack_columns(_words(part(parts, ".qweight")), bits, AWQ_ORDER).t().contiguous()
    scales = part(parts, ".scales").t().contiguous()
    zeros = unpack_columns(_words(part(parts, ".qzeros")), bits, AWQ_ORDER).t()
    _check_groups(codes.shape[1], scales.shape[1], group)
    return integers(name, bits, codes, scales, zeros, None, max(group, 0))


def read_group(name: str, parts: Parts, group: Group) -> Weight:
    """As a group of compressed-tensors says."""
    scales = part(parts, "_scale")
    if group.floating:
        return read_fp8(name, parts, group.tile)
    middle = 1 << group.bits - 1
    packed = "_packed" in parts
    codes = _codes(parts, group.bits) if packed else _counted(part(parts, ""), middle)
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


def _counted(tensor: Tensor, middle: int) -> Tensor:
    """Numbers from 0 on; those that fill their bytes stay in bytes, as anything wider would be the peak of loading."""
    if tensor.dtype is torch.int8 and middle == -torch.iinfo(torch.int8).min:
        return tensor.view(torch.uint8) ^ middle
    return _integers(tensor).short() + middle


def _integers(tensor: Tensor) -> Tensor:
    if tensor.dtype not in (torch.int8, torch.int16, torch.int32, torch.int64):
        raise ValueError(f"has codes of {str(tensor.dtype).removeprefix('torch.')}, not of int8")
    return tensor


def _words(tensor: Tensor) -> Tensor:
    if tensor.dtype is not torch.int32 or tensor.dim() != 2:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise ValueError(f"has codes of {kind} in {tensor.dim()} dimensions, not int32 in 2")
    return tensor


def _check_groups(columns: int, groups: int, group: int) -> None:
    expected = 1 if group == -1 else -(-columns // max(group, 1))
    if groups != expected:
        raise ValueError(f"has scales of {groups} groups, the configuration says {expected}")
