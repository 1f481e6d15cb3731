"""What the kernels of one step share beside their operands: which rows belong to whom, and where their KV lies."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class SliceRows:
    """One sequence's rows of a step: `first` … `first + count - 1`, at positions `start`, `start + 1`, …

    `blocks` is its block table up to its last position, at least one block.
    """

    first: int
    count: int
    start: int
    blocks: tuple[int, ...]

    @property
    def length(self) -> int:
        """Positions that its last row attends to."""
        return self.start + self.count


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass over T rows. Tensors are int64 on the executor's device, `slices` stay on the host."""

    token_ids: Tensor  # [T]
    positions: Tensor  # [T]
    slots: Tensor  # [T] block * block_size + offset of each row's place in the cache
    selected: Tensor  # [S] rows whose logits are wanted
    slices: tuple[SliceRows, ...]
