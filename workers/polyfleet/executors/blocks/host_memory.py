"""Host memory that devices read beside steps."""

import numpy as np
import torch
from torch import Tensor

from polyfleet.kernels.step import can_pin


def page_locked(size: int) -> memoryview:
    """So many bytes, that devices read beside steps; ordinary ones where no more can be had. On any thread.

    Torch keeps what is let go for the next one, so few are new, and new ones hold up what others launch.
    """
    try:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy().data
    except RuntimeError:
        return np.empty(size, np.uint8).data


def is_locked(room: Tensor, device: torch.device) -> bool:
    """Whether a device reads this host memory beside steps."""
    return can_pin(device.type) and room.is_pinned()
