"""Products as `test_triton` compiles them: kernel, types of its operands, constants, warps and stages."""

import itertools
from typing import Any

from polyfleet.kernels.triton import codes, hopper_linear, linear, pairs, shrink
from polyfleet.kernels.triton.tuning import Cut, Tuning

Cases = list[tuple[Any, dict[str, str], dict[str, Any], int, int]]


def products(tuned: Tuning, *ways: tuple[int, bool, int], wide: bool = False) -> Cases:
    """Of each kind of weights a product, with what adapters add to it or without, and what unpacks them."""
    alone = dict.fromkeys(("RANK", "SECOND", "THIRD"), 0) | dict.fromkeys(("RANKS", "SHRUNK", "COLUMNS"), 1)
    cases: Cases = []
    types = dict.fromkeys(("x", "bias", "residual", "gain", "plain", "down", "up", "out", "gained"), "*bf16")
    types |= dict.fromkeys(("squares", "sums", "parts", "units", "totals", "low"), "*fp32")
    types |= {"groups": "*i32", "arrived": "*i32", "adapters": "*i32", "rows": "i32", "shrinking": "i32", "eps": "fp32"}
    for kind, silu, rows in ways or ((0, False, 16), (1, True, 32), (2, False, 64)):
        cut, packed = tuned.cut(kind, rows, silu=silu, wide=wide), {"codes": "*i32" if kind else "*bf16"}
        size = {"N": 4096, "K": 4096, "SQUARES": 64, "GROUP": 4096 if kind == 1 else 32}
        size["SPAN"] = 32 if kind else cut.step
        how = {"KIND": kind, "MINIMA": kind == 2, "STEP": min(size["SPAN"], cut.step), "BLOCK": cut.block, "ROWS": rows}
        around = {"SPLITS": 1 if silu else 2, "NORM": silu, "BIAS": False, "BEHIND": 1 if silu else 2}
        around |= adapted(cut, rows, 2048 if silu else 4096) if kind < 2 else alone
        target = {"ASSEMBLY": tuned.assembly and kind > 0, "CHAINED": int(tuned.chained), "STAGES": cut.stages}
        target["LINES"] = 64 if tuned.ahead and kind == 0 else 0
        cases.append((linear.linear_kernel, types | packed, size | how | around | target, cut.warps, cut.stages))
    if tuned.bytes:
        cases += products_of_bytes(tuned, types, alone)
    if tuned.alone:
        small = {"N": 3072, "K": 576, "SQUARES": 72, "GROUP": 1, "SPAN": 1, "KIND": 0, "MINIMA": False, "STEP": 1}
        small |= {"BLOCK": tuned.alone.block, "ROWS": 1, "SPLITS": 1, "NORM": True, "BIAS": False, "BEHIND": 1}
        small |= {"ASSEMBLY": False, "CHAINED": 2, "LINES": 0, "STAGES": 1, **alone}
        cases.append((linear.linear_kernel, types | {"codes": "*bf16"}, small, tuned.alone.warps, tuned.alone.stages))
    packing = {"N": 4096, "K": 4096, "KIND": 2, "GROUP": 32, "MINIMA": True, "SPAN": 32, "BLOCK": 32}
    whole = {"codes": "*i32", "groups": "*i32", "out": "*bf16"}
    cases.append((codes.unpack_kernel, whole, packing | {"ASSEMBLY": tuned.assembly}, 4, 3))
    return cases


def adapted(cut: Cut, rows: int, second: int) -> dict[str, int]:
    """Of a product [4096, ...] that takes what adapters of rank 16 add to its two weights, or one."""
    ranks, _, _ = shrink.Grown(sizes=(16, second, 4096)).at_once(cut.block * rows, cut.warps)
    given = {"RANK": 16, "SECOND": second, "THIRD": 4096, "RANKS": ranks}
    return given | {"SHRUNK": shrink.LINES, "COLUMNS": shrink.COLUMNS}


def products_of_bytes(tuned: Tuning, types: dict[str, str], alone: dict[str, int]) -> Cases:
    """Rows as pairs, and what meets them: fp8 with a scale a row and with groups, int4; by both kernels."""
    paired = {"x": "*bf16", "out": "*i32", "units": "*fp32", "sums": "*fp32", "rows": "i32"}
    sizes = {"K": 14336, "SPAN": 32, "PADDED": 16384, "PIECES": 4, "WORDS": 1024, "SUMS": True, "CHAINED": True}
    cases: Cases = [(pairs.pair_kernel, paired, sizes, 16, 3)]
    types = types | {"x": "*fp8e4nv"}
    for kind, group, rows in ((3, 14336, 32), (3, 128, 16), (4, 128, 64)):
        cut = tuned.cut(kind, rows, silu=False)
        step = cut.step if group > 128 else 128
        size: dict[str, Any] = {"N": 4096, "K": 14336, "SQUARES": 64, "GROUP": group, "MINIMA": kind == 4}
        size |= {"BLOCK": cut.block, "ROWS": rows, "SPLITS": 2, "NORM": False, "BIAS": False, "BEHIND": 2}
        size |= {"KIND": kind, "SPAN": 32, "STEP": step, "ASSEMBLY": kind == 4, "CHAINED": 1, "LINES": 0}
        size |= {"STAGES": cut.stages, **alone}
        codes = {"codes": "*u8" if kind == 4 else "*fp8e4nv"}
        cases.append((linear.linear_kernel, types | codes, size, cut.warps, cut.stages))
    for kind, streams in enumerate(tuned.streams, 3):
        cuts = list(dict.fromkeys(each.cut for each in streams if each.cut))
        for cut, silu in zip(cuts, itertools.cycle((False, True)), strict=False):
            parts = 2 if silu else 1
            tiles = f"[{parts},{cut.block // parts},128],{hopper_linear.LAYOUT!r}>"
            single, rows = cut.rows == 1, hopper_linear.ALONE if cut.rows == 1 else cut.rows
            pair = f"tensordesc<fp8e4nv[{kind - 2},{2 * rows},128],{hopper_linear.LAYOUT!r}>"
            over = types | {"x": "*bf16" if single else pair}
            over["weights"] = f"tensordesc<{'u8' if kind == 4 else 'fp8e4nv'}{tiles}"
            size = {"N": 28672 if silu else 4096, "K": 4096, "SQUARES": 64, "GROUP": 128 if kind == 4 else 4096}
            size |= {"MINIMA": silu, "BLOCK": cut.block, "ROWS": rows, "SPLITS": 1 if silu else 4}
            size |= {"NORM": silu, "BIAS": silu, "BEHIND": 1 if silu else 2, "EACH": kind - 2, "STAGES": cut.stages}
            size |= {"LINE": hopper_linear.LINE, "CHAINED": True, "SPAN": 32 * single}
            cases.append((hopper_linear.hopper_linear_kernel, over, size, cut.warps, 3))
    return cases
