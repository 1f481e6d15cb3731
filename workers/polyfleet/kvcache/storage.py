"""The tensors that hold keys and values: one pair for all layers, cut into blocks."""

from dataclasses import dataclass

import torch
from torch import Tensor

from polyfleet.kernels.graph import GraphParams


def bytes_per_block(params: GraphParams, block_size: int, dtype: torch.dtype) -> int:
    """Memory of one block over all layers, keys and values together."""
    return 2 * params.num_layers * params.num_kv_heads * block_size * params.head_dim * dtype.itemsize


@dataclass(frozen=True, slots=True)
class KvStorage:
    """Keys and values, each [num_layers, num_blocks, num_kv_heads, block_size, head_dim]; every block is usable."""

    keys: Tensor
    values: Tensor

    @classmethod
    def allocate(
        cls, params: GraphParams, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> "KvStorage":
        """Zeroed storage: what no sequence wrote yet must be finite, because masked positions are multiplied by 0."""
        shape = (params.num_layers, num_blocks, params.num_kv_heads, block_size, params.head_dim)
        keys, values = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
        return cls(keys, values)

    def make_finite(self, blocks: tuple[int, ...]) -> None:
        """Replace what is not finite in these blocks by 0, so that their next owner can't meet it behind a mask."""
        index = torch.tensor(sorted(set(blocks)), device=self.keys.device)
        for cache in (self.keys, self.values):
            cache[:, index] = torch.nan_to_num(cache[:, index], nan=0.0, posinf=0.0, neginf=0.0)
