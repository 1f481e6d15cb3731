"""An adapter's matrices as the CPU library reads them: see PfLowRank of abi.h. Pure."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyfleet.kernels.cpu.stages import GROUP

LARGEST_CODE = 127


def pack_rows(matrix: Tensor, *, coarse: bool) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Numbers [groups, columns, 16], int8 where `coarse`, else in half precision, and the scale of each row.

    A row's largest number is next to the largest that there is, so that small ones keep their digits.
    """
    rows, columns = matrix.shape
    groups = -(-rows // GROUP)
    padded = torch.zeros(groups * GROUP, columns)
    padded[:rows] = matrix
    largest = padded.abs().amax(dim=1, keepdim=True)
    if coarse:
        scale = torch.where(largest > 0, largest / LARGEST_CODE, torch.ones(()))
        numbers = (padded / scale).round().to(torch.int8)
    else:
        scale = torch.exp2(torch.where(largest > 0, largest, torch.ones(())).log2().ceil())  # exact to divide by
        numbers = (padded / scale).half()
    laid_out = numbers.view(groups, GROUP, columns).transpose(1, 2).contiguous()
    return laid_out.numpy(), scale.flatten().contiguous().numpy()
