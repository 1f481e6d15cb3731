# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
"""One-shot all-reduce: each rank lays its numbers where the others can read them, and sums up everybody's.

One launch and one exchange of flags, where rings take several; for messages that cost more to announce than to move.
Every program has a region of its own in each rank's memory, twice, so that nobody overwrites what another still reads:
whoever has seen all flags of one launch knows that all have finished the launch before.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 128  # at most, so that all of them run at once
REGION = 8192  # numbers of a program
TILE = 1024
MOST = PROGRAMS * REGION  # numbers of a launch


@triton.jit
def one_shot_kernel(
    x, out, data, flags, epochs, count, span, RANK: tl.constexpr, SIZE: tl.constexpr, REGION: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """`data` and `flags` hold the address of each rank's; sums are in float32, in the order of ranks."""
    program = tl.program_id(0)
    epoch = tl.load(epochs + program) + 1
    region = (program * 2 + (epoch & 1)).to(tl.int64) * REGION
    first = program.to(tl.int64) * span
    mine = tl.multiple_of(tl.load(data + RANK).to(x.dtype), 16)
    for start in range(0, span, TILE):
        column = start + tl.arange(0, TILE)
        inside = (column < span) & (first + column < count)
        tl.store(mine + region + column, tl.load(x + first + column, mask=inside, other=0.0), mask=inside)
    tl.debug_barrier()
    for peer in tl.static_range(SIZE):
        theirs = tl.load(flags + peer).to(epochs.dtype)
        tl.atomic_xchg(theirs + program * SIZE + RANK, epoch, sem="release", scope="sys")
    own = tl.load(flags + RANK).to(epochs.dtype)
    for peer in tl.static_range(SIZE):
        while tl.atomic_add(own + program * SIZE + peer, 0, sem="acquire", scope="sys") - epoch < 0:
            pass
    tl.debug_barrier()
    for start in range(0, span, TILE):
        column = start + tl.arange(0, TILE)
        inside = (column < span) & (first + column < count)
        total = tl.zeros((TILE,), tl.float32)
        for peer in tl.static_range(SIZE):
            laid = tl.multiple_of(tl.load(data + peer).to(x.dtype), 16)
            part = tl.load(laid + region + column, mask=inside, other=0.0, cache_modifier=".cg")
            total += part.to(tl.float32)
        tl.store(out + first + column, total.to(out.dtype.element_ty), mask=inside)
    tl.store(epochs + program, epoch)


def one_shot(x: Tensor, data: Tensor, flags: Tensor, epochs: Tensor, rank: int, size: int) -> Tensor:
    """The sum of all ranks' x, of MOST numbers at most.

    `data` and `flags` [size] are addresses, of room for 2 * MOST numbers and of PROGRAMS * size int32s; `epochs`
    [PROGRAMS] int32 is this rank's own.
    """
    x = x.contiguous()
    out, count = torch.empty_like(x), x.numel()
    programs = min(PROGRAMS, triton.cdiv(count, TILE))
    span = triton.cdiv(triton.cdiv(count, programs), TILE) * TILE
    one_shot_kernel[(programs,)](x, out, data, flags, epochs, count, span, rank, size, REGION, TILE, num_warps=4)
    return out
