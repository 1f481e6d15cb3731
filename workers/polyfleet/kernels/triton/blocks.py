# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
"""Blocks of a KV cache to one piece of memory and back: one launch for all layers, whose caches lie apart."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 16  # of a block that one program moves
WORDS = (torch.int32, torch.int16, torch.int8)  # as which numbers move, whatever they are


@triton.jit(do_not_specialize=["count", "held", "by_side", "by_block"])
def move_kernel(
    caches, flat, blocks, count, held, by_side, by_block,
    SIDES: tl.constexpr, HEADS: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    ROWS: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    """ROWS positions of one head in a block of a cache's side; `caches` are addresses, `held` the blocks of each.

    In `flat` a side lies `by_side` such parts behind the one before, and of it a block `by_block` behind the last.
    """
    at, head = tl.program_id(0), tl.program_id(1)
    number, side = at % count, at // count
    block = tl.load(blocks + number).to(tl.int64)
    cache = tl.load(caches + side // SIDES).to(tl.pointer_type(flat.dtype.element_ty))
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, PADDED)[None, :]
    mask = (row < SIZE) & (column < WIDTH)
    here = cache + (((side % SIDES * held + block) * HEADS + head) * SIZE + row) * WIDTH + column
    part = side.to(tl.int64) * by_side + number.to(tl.int64) * by_block
    there = flat + ((part * SIZE + row) * HEADS + head) * WIDTH + column
    if OUT:
        tl.store(there, tl.load(here, mask=mask), mask=mask)
    else:
        tl.store(here, tl.load(there, mask=mask), mask=mask)


class BlockMover:
    """Of caches [2, num_blocks, heads, block_size, width] that are alike."""

    def __init__(self, caches: Sequence[Tensor]) -> None:
        self._like = like = caches[0]
        self._caches = torch.tensor([each.data_ptr() for each in caches], device=like.device)
        sides, self._held, heads, size, width = like.shape
        row_bytes = width * like.itemsize
        self._word = next(each for each in WORDS if row_bytes % each.itemsize == 0)
        words = row_bytes // self._word.itemsize
        self._shape = sides, heads, size, words, triton.next_power_of_2(words), ROWS
        self._grid = len(caches) * sides, heads, triton.cdiv(size, ROWS)
        self._block_numbers = len(caches) * sides * heads * size * width
        first = torch.zeros(1, dtype=torch.int64, device=like.device)
        self.write_flat(first, self.read_flat(first))  # so that no step waits for kernels to be compiled

    def read_flat(self, blocks: Tensor, local: Tensor | None = None) -> Tensor:
        """See `kvcache.storage`; there is no second pool."""
        flat = torch.empty(len(blocks) * self._block_numbers, dtype=self._like.dtype, device=self._like.device)
        self._move(blocks, flat, len(blocks), 1, out=True)
        return flat

    def write_flat(self, blocks: Tensor, flat: Tensor, local: Tensor | None = None) -> None:
        """Put back what `read_flat` gave."""
        self._move(blocks, flat, len(blocks), 1, out=False)

    def read_rows(self, blocks: Tensor, rows: Tensor) -> None:
        """See `kvcache.storage`."""
        self._move(blocks, rows, 1, self._grid[0], out=True)

    def write_rows(self, blocks: Tensor, rows: Tensor) -> None:
        """Put back what `read_rows` gave."""
        self._move(blocks, rows, 1, self._grid[0], out=False)

    def _move(self, blocks: Tensor, flat: Tensor, by_side: int, by_block: int, *, out: bool) -> None:
        if count := len(blocks):
            parts, heads, pieces = self._grid
            words = flat.view(torch.int8).view(self._word)
            move_kernel[(parts * count, heads, pieces)](
                self._caches, words, blocks, count, self._held, by_side, by_block, *self._shape, out
            )
