"""What users give to kernel graphs, arrays of numpy or torch, checked and brought into one form."""

from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from polyfleet.kernels.weights.weight import Weight, WeightFormat

Array: TypeAlias = NDArray[Any] | torch.Tensor
FORMATS = {
    torch.float32: WeightFormat.F32,
    torch.float16: WeightFormat.F16,
    torch.bfloat16: WeightFormat.BF16,
}


def as_rows(name: str, array: Array, width: int) -> NDArray[np.float32]:
    """An input [rows, width]; raises ValueError."""
    tensor = _floating(f"input {name!r}", array)
    if tensor.dim() != 2 or tensor.shape[1] != width:
        raise ValueError(f"input {name!r} must be [rows, {width}], not {list(tensor.shape)}")
    return np.ascontiguousarray(tensor.float().numpy())


def as_ids(name: str, array: Array, limit: int) -> NDArray[np.int32]:
    """An input [rows] of whole numbers under `limit`; raises ValueError."""
    tensor = _tensor(f"input {name!r}", array)
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool or tensor.dim() != 1:
        raise ValueError(f"input {name!r} must be whole numbers [rows], not {tensor.dtype} {list(tensor.shape)}")
    ids = tensor.numpy()
    if len(ids) and not (ids.min() >= 0 and ids.max() < limit):
        wrong = ids[(ids < 0) | (ids >= limit)][0]
        raise ValueError(f"ids of input {name!r} must be 0 to {limit - 1}, not {wrong}")
    return ids.astype(np.int32)


def as_weight(name: str, what: str, array: Array, rows: int | None, columns: int | None) -> Weight:
    """A copy of a matrix, or for `rows` 1 of a vector; None: as many as there are. Raises ValueError."""
    tensor = _floating(what, array)
    tensor = tensor.clone() if tensor.dtype in FORMATS else tensor.float()
    wanted = [columns] if rows == 1 else [rows, columns]
    fits = tensor.dim() == len(wanted) and all(
        size > 0 and size == (size if want is None else want) for size, want in zip(tensor.shape, wanted, strict=True)
    )
    if not fits:
        names = ("rows", "columns") if columns is None else ("outputs", "")
        shape = ", ".join(names[at] if want is None else str(want) for at, want in enumerate(wanted))
        raise ValueError(f"{what} must be [{shape}], not {list(tensor.shape)}")
    if not bool(tensor.isfinite().all()):
        raise ValueError(f"{what} holds numbers that are not finite in {str(tensor.dtype).removeprefix('torch.')}")
    matrix = (tensor if tensor.dim() == 2 else tensor[None]).contiguous()
    return Weight(name, FORMATS[matrix.dtype], len(matrix), matrix.shape[1], matrix)


def _floating(what: str, array: Array) -> torch.Tensor:
    tensor = _tensor(what, array)
    if not tensor.is_floating_point():
        raise ValueError(f"{what} must be floating-point numbers, not {str(tensor.dtype).removeprefix('torch.')}")
    return tensor


def _tensor(what: str, array: Array) -> torch.Tensor:
    """On the host; shares memory with an array that lies there."""
    if isinstance(array, torch.Tensor):
        return array.detach().cpu()
    try:
        return torch.from_numpy(np.ascontiguousarray(array) if isinstance(array, np.ndarray) else np.array(array))
    except (TypeError, ValueError):
        raise ValueError(f"{what} must be an array of numbers, not {type(array).__name__}") from None
