"""Weights that stay quantised in a device's memory: words of codes, and a scale and a minimum of each group of columns.

A word of 32 bits has 8 codes of 4 bits, or 4 of fp8 (e4m3). A row's words lie in chunks of 8 or 4 times `span` columns:
word i of a chunk holds its columns i, i + span, i + 2 span …, a byte each from the low end on; of 4 bits the first four
lie in the lower halves of bytes, the others in the upper ones. A group's word has its scale in the low half and its
minimum in the high one, both bfloat16. A weight is code * scale + minimum, without minima (code - 8) * scale of int4;
scales of fp8 are 2^120 times theirs, so that kernels read e4m3 by moving its bits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import torch
from torch import Tensor

from polyfleet.kernels.weights.folder_blocks import int4_parts
from polyfleet.kernels.weights.groups import Groups
from polyfleet.kernels.weights.quantisation import dequantise, groups_of
from polyfleet.kernels.weights.weight import Weight, WeightFormat

SPANS = (64, 32, 16)  # the widest is taken with which the bytes of a word are of one group, else the widest that fits
E4M3_RANGE, E4M3_FACTOR = 448.0, 2.0**120
GROUP = 128  # columns, of weights that are quantised here
GROUP_OF_FILES = 32  # of their blocks
HEADS = frozenset({"lm_head", "embedding"})  # which 4 bits would hurt more than others


class Kind(IntEnum):
    """Of codes."""

    FP8 = 1
    INT4 = 2

    @property
    def pack(self) -> int:
        """Codes of a word."""
        return 4 if self is Kind.FP8 else 8

    @property
    def shifts(self) -> tuple[int, ...]:
        """Where in a word its columns have their codes, in bits."""
        return tuple(8 * (place % 4) + place // 4 * 4 for place in range(self.pack))


KINDS = {  # of codes, by the format of a file
    WeightFormat.Q4_0: Kind.INT4,
    WeightFormat.Q4_1: Kind.INT4,
    WeightFormat.Q4_K: Kind.INT4,
    WeightFormat.INT4: Kind.INT4,
    WeightFormat.FP8: Kind.FP8,
}


@dataclass(frozen=True, slots=True)
class Packed:
    """A matrix [rows, columns] in groups of `group` columns."""

    kind: Kind
    words: Tensor  # [rows, columns / pack] int32
    groups: Tensor  # [columns / group, rows] int32
    group: int
    span: int
    minima: bool

    @property
    def rows(self) -> int:
        """Outputs."""
        return len(self.words)

    @property
    def columns(self) -> int:
        """Inputs."""
        return self.words.shape[1] * self.kind.pack

    @property
    def nbytes(self) -> int:
        """Of both tensors."""
        return self.words.nbytes + self.groups.nbytes


def span_of(kind: Kind, columns: int, group: int) -> int:
    """Words of a chunk; 0 where such rows can't be packed."""
    fitting = []
    for span in SPANS:
        chunk = kind.pack * span
        if columns % chunk == 0 and group % span == 0 and (chunk % group == 0 or group % chunk == 0):
            fitting.append(span)
    return next((span for span in fitting if group % (4 * span) == 0), fitting[0] if fitting else 0)


def pack(kind: Kind, codes: Tensor, scales: Tensor, minima: Tensor | None = None) -> Packed:
    """Of codes [rows, columns] of bytes, scales and minima [rows, groups]; ValueError where they don't fit."""
    rows, columns = codes.shape
    group = columns // scales.shape[1]
    span = span_of(kind, columns, group)
    if not span or len(scales) != rows or group * scales.shape[1] != columns:
        raise ValueError(f"{rows} x {columns} codes can't be packed in groups of {group}")
    places = codes.view(rows, -1, kind.pack, span)
    words = torch.zeros(rows, places.shape[1], span, dtype=torch.int32, device=codes.device)
    for place, shift in enumerate(kind.shifts):
        words |= places[:, :, place].to(torch.int32) << shift
    pairs = torch.stack((scales, torch.zeros_like(scales) if minima is None else minima), dim=-1)
    groups = pairs.to(torch.bfloat16).transpose(0, 1).contiguous().view(torch.int32).squeeze(-1)
    return Packed(kind, words.flatten(1), groups, group, span, minima is not None)


def unpack(packed: Packed, dtype: torch.dtype) -> Tensor:
    """The matrix [rows, columns]."""
    kind, rows = packed.kind, packed.rows
    words = packed.words.view(rows, -1, 1, packed.span)
    shifts = torch.tensor(kind.shifts, dtype=torch.int32, device=words.device).view(-1, 1)
    codes = (words >> shifts & (0xFF if kind is Kind.FP8 else 0xF)).reshape(rows, -1, packed.group)
    pairs = packed.groups.unsqueeze(-1).view(torch.bfloat16).float().transpose(0, 1)
    scale, minimum = pairs[..., :1], pairs[..., 1:]
    if kind is Kind.FP8:
        numbers = codes.to(torch.uint8).view(torch.float8_e4m3fn).float() * (scale / E4M3_FACTOR)
    else:
        numbers = codes * scale + minimum if packed.minima else (codes - 8) * scale
    return numbers.flatten(1).to(dtype)


def quantise(kind: Kind, dense: Tensor) -> Packed:
    """To the nearest codes: fp8 with a scale a row, int4 symmetrically with one for every GROUP columns."""
    wide = dense.float()
    if kind is Kind.FP8:
        scales = _scales(wide.abs().amax(1, keepdim=True) / E4M3_RANGE)
        numbers = (wide / scales).clamp(-E4M3_RANGE, E4M3_RANGE)
        return pack(kind, numbers.to(torch.float8_e4m3fn).view(torch.uint8), scales * E4M3_FACTOR)
    groups = wide.view(len(wide), -1, GROUP)
    scales = _scales(groups.abs().amax(2, keepdim=True) / 7)
    codes = (groups / scales).round_().clamp_(-8, 7) + 8
    return pack(kind, codes.to(torch.uint8).flatten(1), scales.squeeze(-1))


def _scales(scales: Tensor) -> Tensor:
    """As they will be kept, none of them 0."""
    return scales.to(torch.bfloat16).float().clamp_min_(2.0**-100)


def kept(weights: Sequence[Weight], weights_as: str) -> Kind | None:
    """What weights that lie side by side stay in memory as; None: dense.

    "auto" keeps what files have in 4 bits or in fp8. "int4" keeps 4 bits of files, and leaves outputs and rows that it
    does not fit to fp8, which keeps fp8 of files.
    """
    columns = weights[0].columns
    if not weights_as or any(weight.rows == 1 for weight in weights):
        return None
    if (
        (kind := _of_files(weights))
        and weights_as in ("auto", kind.name.lower())
        and span_of(kind, columns, GROUP_OF_FILES)
    ):
        return kind
    if weights_as == "auto":
        return None
    small = weights_as == "int4" and not HEADS & {weight.name for weight in weights}
    if small and columns % GROUP == 0 and span_of(Kind.INT4, columns, GROUP):
        return Kind.INT4
    return Kind.FP8 if span_of(Kind.FP8, columns, columns) else None


def _of_files(weights: Sequence[Weight]) -> Kind | None:
    """The kind of codes that all of them have in their files."""
    kinds = {KINDS.get(weight.format) for weight in weights}
    return kinds.pop() if len(kinds) == 1 else None


def packed_bytes(kind: Kind, weights: Sequence[Weight]) -> int:
    """What they will take at most."""
    group = GROUP_OF_FILES if _of_files(weights) is kind else GROUP if kind is Kind.INT4 else weights[0].columns
    groups = weights[0].columns // group
    return sum(weight.rows * (weight.columns * 4 // kind.pack + 4 * groups) for weight in weights)


def pack_weights(
    kind: Kind, weights: Sequence[Weight], device: torch.device, read: Callable[..., Tensor] = dequantise
) -> Packed:
    """Weights that lie side by side, one after the other, so that no more than one of them is there dense.

    `read` is called as `dequantise` is, for those that are quantised here.
    """
    if _of_files(weights) is kind:
        parts = _pack_files(kind, weights, device)
    else:
        parts = [quantise(kind, read(weight, torch.float32, device)) for weight in weights]
    if len(parts) == 1:
        return parts[0]
    words = torch.cat([part.words for part in parts])
    return replace(parts[0], words=words, groups=torch.cat([part.groups for part in parts], dim=1))


def _pack_files(kind: Kind, weights: Sequence[Weight], device: torch.device) -> list[Packed]:
    """Of blocks of 32 columns; the same numbers, but that scales and minima are bfloat16.

    Blocks that have scale and minimum alike with those beside them become groups of more columns.
    """
    parts = [_codes(weight, device) for weight in weights]
    if broken := [weight.name for weight, part in zip(weights, parts, strict=True) if not part.finite]:
        raise ValueError(f"the tensor for {broken[0]!r} holds numbers that are not finite")
    counts_from_8 = all(part.minima is None for part in parts)
    columns, found = weights[0].columns, []
    for part in parts:
        minima = part.minima
        if kind is Kind.INT4 and not counts_from_8 and minima is None:
            minima = -8 * part.scales
        found.append(replace(part, minima=minima))
    group = next(
        each
        for each in (columns, 4 * GROUP_OF_FILES, 2 * GROUP_OF_FILES, GROUP_OF_FILES)
        if span_of(kind, columns, each) and all(_alike(part, each) for part in found)
    )
    step = group // GROUP_OF_FILES
    return [
        pack(
            kind, each.codes.flatten(1), each.scales[:, ::step], None if each.minima is None else each.minima[:, ::step]
        )
        for each in found
    ]


def _alike(part: Groups, group: int) -> bool:
    """Whether all blocks of each group have one scale and one minimum."""
    if part.codes.shape[1] * GROUP_OF_FILES % group:
        return False
    sides = [
        side.view(len(side), -1, group // GROUP_OF_FILES) for side in (part.scales, part.minima) if side is not None
    ]
    return all(bool((side == side[..., :1]).all()) for side in sides)


def _codes(weight: Weight, device: torch.device) -> Groups:
    """Codes in bytes and their scales, of fp8 2^120 times as large; without minima codes of 4 bits count from 8."""
    data = weight.data.to(device)
    if weight.format is WeightFormat.INT4:
        codes, scales, zeros = int4_parts(data)
        minima = None if bool((zeros == 8).all()) else -scales * zeros
        return Groups(codes, scales, minima)
    groups = groups_of(weight.format, data)
    if weight.format is WeightFormat.FP8:
        return Groups(groups.codes.view(torch.uint8), groups.scales * E4M3_FACTOR)
    return replace(groups, codes=groups.codes + 8) if weight.format is WeightFormat.Q4_0 else groups
