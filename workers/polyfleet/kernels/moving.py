"""Numbers on their way from the host to a device, over page-locked memory where there is some."""

import torch
from torch import Tensor

from polyfleet.kernels.step import can_pin

PIECE = 1 << 25  # bytes that go at once: the next ones are read meanwhile


def moved(tensor: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A tensor on the device in a dtype; the same one where it is there. Large ones do not wait for the device.

    All of torch's threads read a piece into page-locked memory, which torch gives out again when the device has it;
    the driver's own copy of memory that is not page-locked, a mapped file's, keeps one core busy.
    """
    if tensor.device.type != "cpu" or tensor.nbytes < PIECE or not tensor.is_contiguous() or not can_pin(device.type):
        return tensor.to(device=device, dtype=dtype)
    out = torch.empty_like(tensor, device=device)
    pieces = (torch.split(each.view(-1), PIECE // tensor.itemsize) for each in (tensor, out))
    for source, target in zip(*pieces, strict=True):
        target.copy_(source.pin_memory(), non_blocking=True)
    return out.to(dtype)
