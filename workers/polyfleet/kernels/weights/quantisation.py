"""Block formats made numbers again, in torch, on any device."""

from collections.abc import Mapping

import torch
from torch import Tensor

from polyfleet.kernels.moving import moved
from polyfleet.kernels.weights.folder_blocks import FOLDER
from polyfleet.kernels.weights.formats import BLOCKS as BLOCKS
from polyfleet.kernels.weights.formats import row_bytes as row_bytes
from polyfleet.kernels.weights.ggml_blocks import PLAIN
from polyfleet.kernels.weights.ggml_lattices import LATTICES
from polyfleet.kernels.weights.groups import Groups
from polyfleet.kernels.weights.weight import Weight, WeightFormat

CHUNK_WEIGHTS = 1 << 22  # dequantised at a time, which bounds the float32 scratch memory to about 50 MB


DENSE_DTYPES: Mapping[WeightFormat, torch.dtype] = {
    WeightFormat.F32: torch.float32,
    WeightFormat.F16: torch.float16,
    WeightFormat.BF16: torch.bfloat16,
}


def dequantise(weight: Weight, dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """The weight as a dense [rows, columns] tensor; dense weights of that dtype and device are not copied.

    Raises ValueError for scales that are not finite.
    """
    if not weight.format.quantised:
        return moved(weight.data, torch.device(device), dtype)
    out = torch.empty((weight.rows, weight.columns), dtype=dtype, device=device)
    step = max(1, CHUNK_WEIGHTS // weight.columns)
    for start in range(0, weight.rows, step):
        groups = groups_of(weight.format, weight.data[start : start + step].to(device))
        if not groups.finite:
            raise ValueError(f"the tensor for {weight.name!r} holds numbers that are not finite")
        out[start : start + step] = groups.numbers.flatten(1)
    return out


def groups_of(form: WeightFormat, data: Tensor) -> Groups:
    """Of rows of blocks, bytes [rows, bytes of a row], on their device."""
    return _READERS[form](data.reshape(len(data), -1, BLOCKS[form].size))


_READERS = {**PLAIN, **LATTICES, **FOLDER}
