# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
"""A single row made pairs (see `pairs`) by the program that multiplies it, in Gluon, without a kernel before it."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from polyfleet.kernels.triton.pairs import LARGEST, LOWER


@gluon.jit
def rounded(wide):
    """As `pairs.rounded` does."""
    bits = wide.to(gl.int32, bitcast=True)
    return ((bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000).to(gl.float32, bitcast=True)


@gluon.jit
def paired_row(x, tiles, begin, count, SPAN: gl.constexpr, COUNT: gl.constexpr, LINE: gl.constexpr):
    """`count` lines of LINE columns, from line `begin` on, as pairs in `tiles`; their unit, and sums [COUNT].

    Highs are a tile's first row, lows its second. Columns are in the order of words of SPAN, sums are in units.
    """
    HALF: gl.constexpr = LINE // 2  # of a tile in LAYOUT: these lie one behind the other
    WARPS: gl.constexpr = gl.num_warps()
    LINES: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [WARPS, 1], [1, 0])
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    half = gl.arange(0, 2 * COUNT, layout=gl.SliceLayout(1, LINES))
    byte = gl.arange(0, HALF, layout=gl.SliceLayout(0, LINES))
    place = (2 * begin + half)[:, None] * HALF + byte[None, :]
    word = place // 4
    column = word // SPAN * (4 * SPAN) + word % SPAN + place % 4 * SPAN
    wide = gl.load(x + column, mask=(half < 2 * count)[:, None], other=0.0).to(gl.float32)
    unit = gl.maximum(gl.max(gl.max(gl.abs(wide), 1), 0), 1e-30) / LARGEST
    wide *= 1.0 / unit
    high = rounded(wide)
    low = rounded((wide - high) * LOWER)
    view = tiles._reinterpret(gl.float8e4nv, [2 * COUNT, tiles.shape[1] * HALF], PLAIN)
    view.slice(0, HALF, 1).store(high.to(gl.float8e4nv))
    view.slice(HALF, HALF, 1).store(low.to(gl.float8e4nv))
    fence_async_shared()
    return unit, gl.sum(gl.reshape(gl.sum(high + low / LOWER, 1), [COUNT, 2]), 1)
