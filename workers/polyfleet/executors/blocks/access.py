"""BlockAccess: what executors that keep blocks in torch's tensors give of them, and take, beside their steps."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from numpy.typing import NDArray

from polyfleet.engine.executor import BlockImport
from polyfleet.executors.blocks.copies import BlockCopies
from polyfleet.executors.blocks.host_memory import page_locked
from polyfleet.executors.blocks.host_rows import HostRows
from polyfleet.executors.torch_memory import memory_errors
from polyfleet.kernels.step import can_pin
from polyfleet.kvcache.storage import KvStorage


class BlockAccess:
    """A part of an executor, which has to set all but `_rows`."""

    _copies: BlockCopies
    _storage: KvStorage
    _device: torch.device
    _asynchronous: bool
    _rows: HostRows | None = None

    def export_blocks(self, blocks: Sequence[int], local: Sequence[int] = ()) -> tuple[NDArray[Any], ...]:
        """Waits for no step, and for the copy no longer than COPY_SECONDS: then it raises DeviceTimeout.

        Arrays are of the computing dtype, of bfloat16 its bits as uint16; rows of codes leave as they are, int8.
        """
        return self._copies.export(blocks, local)

    def import_blocks(self, blocks: Sequence[int], caches: Sequence[NDArray[Any]], local: Sequence[int] = ()) -> None:
        """Takes what `export_blocks` gives, dtypes included. Steps with these blocks wait for it, no others do.

        What is Joined in one of `host_buffers` is read when the device comes to it: it may be let go, not written.
        """
        with memory_errors():
            self._copies.take(blocks, caches, local)

    def begin_import(self, blocks: Sequence[int], local: Sequence[int] = ()) -> BlockImport | None:
        """`import_blocks`, all but whose bookkeeping another thread does; None where it must not touch the device."""
        return self._copies.begin_take(blocks, local) if self._copies.streams.shared else None

    def begin_export(self, blocks: Sequence[int], local: Sequence[int] = ()) -> Callable[[], tuple[NDArray[Any], ...]]:
        """What waits for it, on any thread, as `export_blocks` does; what is written to the blocks waits for it too."""
        return self._copies.begin_export(blocks, local)

    def host_buffers(self) -> Callable[[int], memoryview] | None:
        """Makes memory, on any thread, that devices read beside steps: page-locked; None where that gains nothing."""
        return page_locked if self._asynchronous and can_pin(self._device.type) else None

    def host_rows(self, count: int) -> HostRows | None:
        """Page-locked memory for so many blocks, where steps go on beside copies; else None. May raise MemoryError."""
        if not self._asynchronous or self._storage.local or not can_pin(self._device.type):
            return None
        with memory_errors():
            self._rows = HostRows(self._copies, count)
        return self._rows
