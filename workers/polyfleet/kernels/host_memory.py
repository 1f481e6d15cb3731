"""Giving memory back to the system while a model loads, so that it never takes much more than it keeps."""

import ctypes
import mmap
import sys

from torch import Tensor

TRIM_BYTES = 1 << 23  # of garbage, between two times that it is given back


class Garbage:
    """Counts what was let go; now and then it has the allocator give back what it holds and nobody uses."""

    def __init__(self) -> None:
        self._size = 0
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None

    def add(self, size: int) -> None:
        """So many bytes more."""
        self._size += size
        if self._trim is not None and self._size > TRIM_BYTES:
            self._trim(0)
            self._size = 0


def let_go(tensor: Tensor) -> None:
    """Take the whole pages of a mapped tensor that nobody reads again out of memory: the file keeps them."""
    first = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    size = (tensor.data_ptr() + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - first
    if sys.platform == "linux" and size > 0:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), mmap.MADV_DONTNEED)
