"""Blocks of a KV cache to one piece of its device's memory and back, by the fastest that there is."""

from collections.abc import Collection
from typing import Protocol

from torch import Tensor

from polyfleet.kvcache.storage import KvStorage


class BlockMoves(Protocol):
    """Those of KvStorage; `local`: blocks of its second pool."""

    def read_flat(self, blocks: Tensor, local: Tensor | None = None) -> Tensor:
        """See KvStorage."""
        ...

    def write_flat(self, blocks: Tensor, flat: Tensor, local: Tensor | None = None) -> None:
        """See KvStorage."""
        ...

    def read_rows(self, blocks: Tensor, rows: Tensor) -> None:
        """See KvStorage."""
        ...

    def write_rows(self, blocks: Tensor, rows: Tensor) -> None:
        """See KvStorage."""
        ...


def block_moves(storage: KvStorage, capabilities: Collection[str]) -> BlockMoves:
    """The storage's own, one launch for each cache; one for all where caches are alike and Triton is."""
    alike = len({(each.shape, each.dtype) for each in storage.caches}) == 1 and not storage.local
    if not alike or "triton" not in capabilities:
        return storage
    try:
        from polyfleet.kernels.triton import WHERE
        from polyfleet.kernels.triton.blocks import BlockMover
    except ImportError:  # the vendor's torch brings Triton, or there is none
        return storage
    return BlockMover(storage.caches) if storage.caches[0].device.type in WHERE else storage
