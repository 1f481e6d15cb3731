# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
"""What nothing before it turns goes to a cache as it is: keys and values of heads, and latent vectors."""

import triton
import triton.language as tl
from torch import Tensor

from polyfleet.graph.ops import CacheWrite, Op, of
from polyfleet.kernels.cached import pointed
from polyfleet.kernels.context import KernelContext
from polyfleet.kernels.dispatch import Kernel
from polyfleet.kernels.step import Step
from polyfleet.kernels.triton.decode import fitted


@triton.jit
def write_kernel(
    first, second, places, caches, others,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, OTHER: tl.constexpr, BESIDE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    PADDED: tl.constexpr,
):  # fmt: skip
    """One row and head: WIDTH columns of `first` to one cache and OTHER of `second` to another, or BESIDE them."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, PADDED)
    place = tl.load(places + row).to(tl.int64)
    line = (place // BLOCK_SIZE * HEADS + head) * BLOCK_SIZE + place % BLOCK_SIZE
    STRIDE: tl.constexpr = WIDTH + OTHER if BESIDE else WIDTH
    mine, theirs = (column < WIDTH) & (place >= 0), (column < OTHER) & (place >= 0)
    numbers = tl.load(first + (row * HEADS + head) * WIDTH + column, mask=mine, other=0.0)
    tl.store(caches + line * STRIDE + column, fitted(numbers, caches), mask=mine)
    numbers = tl.load(second + (row * HEADS + head) * OTHER + column, mask=theirs, other=0.0)
    target = caches + line * STRIDE + WIDTH if BESIDE else others + line * STRIDE
    tl.store(target + column, fitted(numbers, caches), mask=theirs)


def bind_cache_write(op: Op, context: KernelContext) -> Kernel:
    """k, v -> nothing."""
    cache = of(op, CacheWrite).cache
    keys, values = pointed(context.keys[cache]), pointed(context.values[cache])
    heads, block_size, width = keys.shape[1:]
    shape = heads, width, width, False, block_size, triton.next_power_of_2(width)

    def kernel(step: Step, k: Tensor, v: Tensor) -> tuple[()]:
        write_kernel[(len(k), heads)](k.contiguous(), v.contiguous(), step.places, keys, values, *shape, num_warps=1)
        return ()

    return kernel


def bind_latent_write(op: Op, context: KernelContext) -> Kernel:
    """latent, key -> nothing."""
    cache = pointed(context.keys[of(op, CacheWrite).cache])
    block_size, width = cache.shape[2:]

    def kernel(step: Step, latent: Tensor, key: Tensor) -> tuple[()]:
        columns = latent.shape[1]
        shape = 1, columns, width - columns, True, block_size, triton.next_power_of_2(max(columns, width - columns))
        operands = latent.contiguous(), key.contiguous(), step.places, cache, cache
        write_kernel[(len(latent), 1)](*operands, *shape, num_warps=1)
        return ()

    return kernel
