"""What the ranks of a group do together, as executors and kernels see it."""

from typing import Protocol

from torch import Tensor


class Ranks(Protocol):
    """A rank's end of its group. All ranks call the same in the same order; nothing waits for the device."""

    @property
    def rank(self) -> int:
        """From 0 on."""
        ...

    @property
    def size(self) -> int:
        """Ranks of the group."""
        ...

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of all ranks' x, to the same bits on each; x may be changed."""
        ...

    def all_gather(self, x: Tensor) -> Tensor:
        """All ranks' x [rows, columns] side by side."""
        ...

    def broadcast(self, x: Tensor) -> None:
        """Make x what it is on rank 0."""
        ...
