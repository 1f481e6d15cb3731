"""Formats in which weights are stored, and the geometry of their blocks. No torch is imported here."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, unique


@unique
class WeightFormat(str, Enum):
    """Storage of one weight: dense, in GGML's blocks of 32 or 256 weights, or in blocks of 32 of quantised folders."""

    F32 = "F32"
    F16 = "F16"
    BF16 = "BF16"
    Q8_0 = "Q8_0"
    Q4_0 = "Q4_0"
    Q4_1 = "Q4_1"
    Q4_K = "Q4_K"
    Q6_K = "Q6_K"
    Q5_0 = "Q5_0"
    Q5_1 = "Q5_1"
    Q2_K = "Q2_K"
    Q3_K = "Q3_K"
    Q5_K = "Q5_K"
    Q8_K = "Q8_K"
    TQ1_0 = "TQ1_0"
    TQ2_0 = "TQ2_0"
    IQ1_S = "IQ1_S"
    IQ1_M = "IQ1_M"
    IQ2_XXS = "IQ2_XXS"
    IQ2_XS = "IQ2_XS"
    IQ2_S = "IQ2_S"
    IQ3_XXS = "IQ3_XXS"
    IQ3_S = "IQ3_S"
    IQ4_NL = "IQ4_NL"
    IQ4_XS = "IQ4_XS"
    MXFP4 = "MXFP4"
    INT4 = "INT4"
    INT8 = "INT8"
    FP8 = "FP8"

    @property
    def quantised(self) -> bool:
        """Whether data are blocks of bytes rather than numbers."""
        return self.name not in ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """A block of `weights` consecutive weights of one row takes `size` bytes."""

    weights: int
    size: int


BLOCKS: Mapping[WeightFormat, BlockLayout] = {
    WeightFormat.F32: BlockLayout(1, 4),
    WeightFormat.F16: BlockLayout(1, 2),
    WeightFormat.BF16: BlockLayout(1, 2),
    WeightFormat.Q8_0: BlockLayout(32, 34),
    WeightFormat.Q4_0: BlockLayout(32, 18),
    WeightFormat.Q4_1: BlockLayout(32, 20),
    WeightFormat.Q4_K: BlockLayout(256, 144),
    WeightFormat.Q6_K: BlockLayout(256, 210),
    WeightFormat.Q5_0: BlockLayout(32, 22),
    WeightFormat.Q5_1: BlockLayout(32, 24),
    WeightFormat.Q2_K: BlockLayout(256, 84),
    WeightFormat.Q3_K: BlockLayout(256, 110),
    WeightFormat.Q5_K: BlockLayout(256, 176),
    WeightFormat.Q8_K: BlockLayout(256, 292),
    WeightFormat.TQ1_0: BlockLayout(256, 54),
    WeightFormat.TQ2_0: BlockLayout(256, 66),
    WeightFormat.IQ1_S: BlockLayout(256, 50),
    WeightFormat.IQ1_M: BlockLayout(256, 56),
    WeightFormat.IQ2_XXS: BlockLayout(256, 66),
    WeightFormat.IQ2_XS: BlockLayout(256, 74),
    WeightFormat.IQ2_S: BlockLayout(256, 82),
    WeightFormat.IQ3_XXS: BlockLayout(256, 98),
    WeightFormat.IQ3_S: BlockLayout(256, 110),
    WeightFormat.IQ4_NL: BlockLayout(32, 18),
    WeightFormat.IQ4_XS: BlockLayout(256, 136),
    WeightFormat.MXFP4: BlockLayout(32, 17),
    WeightFormat.INT4: BlockLayout(32, 21),
    WeightFormat.INT8: BlockLayout(32, 37),
    WeightFormat.FP8: BlockLayout(32, 36),
}


def row_bytes(form: WeightFormat, columns: int) -> int:
    """Bytes of one row; raises ValueError when blocks don't fit it evenly."""
    block = BLOCKS[form]
    if columns % block.weights:
        raise ValueError(f"rows of {columns} weights can't be {form.value}, whose blocks hold {block.weights}")
    return columns // block.weights * block.size
