"""Triton's kernels where there is no device: compiled ahead, for four targets."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource, compile  # noqa: E402
from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction  # noqa: E402

from polyfleet.kernels.triton import (  # noqa: E402
    activation,
    adapters,
    all_reduce,
    codes,
    decode,
    experts,
    hopper,
    hopper_linear,
    latent,
    linear,
    norms,
    pairs,
    prefill,
    recurrent,
    rope,
    routes,
    shrink,
    stepping,
    writes,
)
from polyfleet.kernels.triton.tuning import TUNING, Cut, Tuning  # noqa: E402

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx90a": GPUTarget("hip", "gfx90a", 64),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
ELDER = ("sm_80", "gfx90a")
SHARED_BYTES = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "gfx90a": 64 * 1024, "gfx942": 64 * 1024}  # of a program
Cases = list[tuple[Any, dict[str, str], dict[str, Any], int, int]]
IN_BYTES = {"keys": "*fp8e4nv", "values": "*fp8e4nv"}


def attentions(tuned: Tuning) -> Cases:
    """With and without rotation, and of prompts."""
    heads = {"KV_HEADS": 8, "GROUP": 4, "WIDTH": 128, "PADDED": 128, "BLOCK_SIZE": 64}
    over = {"q": "*bf16", "keys": "*bf16", "values": "*bf16", "tables": "*i64", "lengths": "*i64", "out": "*bf16"}
    over |= {"sinks": "*fp32", "table_stride": "i32", "scale": "fp32", "cap": "fp32", "window": "i32"}
    types = over | {"parts": "*fp32", "peaks": "*fp32", "arrived": "*i32", "places": "*i64", "eps": "fp32"}
    types |= dict.fromkeys(("cosine", "sine"), "*fp32") | dict.fromkeys(("q_norm", "k_norm"), "*bf16")
    cases: Cases = []
    plain, limited = (dict.fromkeys(("CAPPED", "WINDOWED", "SUNK"), each) for each in (False, True))
    for splits, turns, limits in ((1, False, plain), (16, True, limited)):
        constants: dict[str, Any] = {**heads, "ROWS": 16, "TILE": tuned.decode.tile, "SPLITS": splits}
        constants |= {"TURNED": turns, "NORMED": turns, "CHAINED": turns and tuned.chained, **limits}
        cases.append((decode.decode_kernel, types, constants, tuned.decode.warps, tuned.decode.stages))
    for launch, limits in ((tuned.prefill, plain), (tuned.short_prefill, limited)):
        constants = {**heads, "ROWS": launch.rows, "TILE": launch.tile, **limits}
        prompts = over | {"row_starts": "*i64", "tiles": "*i32"}
        cases.append((prefill.prefill_kernel, prompts, constants, launch.warps, launch.stages))
    tiled = over | {"row_starts": "*i64", "tiles": "*i32"}
    tiled |= dict.fromkeys(("queries", "keys", "values"), f"tensordesc<bf16[64,64],{hopper.LAYOUT!r}>")
    if tuned.hopper is not None:
        shapes = [{"HEADS": 32, "KV_HEADS": 8, "WIDTH": width} for width in hopper.WIDTHS]
        tiled["works"] = "i32"
        cases += [(hopper.hopper_prefill_kernel, tiled, shape, tuned.hopper.warps, 3) for shape in shapes]
    return cases


def kernels(name: str) -> Cases:
    """Each kernel with the types of its operands, its constants for Llama-3-8B's shape, warps and stages."""
    cases = attentions(TUNING[name]) + products(TUNING[name]) + low_ranks(TUNING[name]) + mixtures(TUNING[name])
    cases += states() + latents(TUNING[name], "*bf16")
    row = {"x": "*bf16", "residual": "*bf16", "weight": "*bf16", "out": "*bf16", "total": "*bf16", "eps": "fp32"}
    cases.append((norms.norm_kernel, row, {"WIDTH": 4096, "PADDED": 4096, "ADD": True}, 8, 3))
    wide = {"gate_up": "*bf16", "out": "*bf16"}
    cases.append((activation.silu_mul_kernel, wide, {"WIDTH": 14336, "COLUMNS": 1024}, 4, 3))
    angles = {"positions": "*i64", "frequencies": "*fp32", "cosine": "*fp32", "sine": "*fp32"}
    cases.append((rope.angles_kernel, angles, {"HALF": 64, "PADDED": 64}, 1, 3))
    turned = {"qkv": "*bf16", "cosine": "*fp32", "sine": "*fp32", "places": "*i64", "out": "*bf16"}
    turned |= {"keys": "*bf16", "values": "*bf16"}
    shape = {"Q_HEADS": 32, "KV_HEADS": 8, "HALF": 64, "PADDED": 64, "BLOCK_SIZE": 64, "HEADS": 8}
    cases.append((rope.rope_cache_kernel, turned, shape, 2, 3))
    if name == "sm_90":  # which computes with caches in fp8
        cases.append((rope.rope_cache_kernel, turned | IN_BYTES, shape, 2, 3))
        cases += [(each[0], each[1] | IN_BYTES, *each[2:]) for each in attentions(TUNING[name])[1:3]]
        cases += latents(TUNING[name], "*fp8e4nv")
    if name.startswith("sm"):
        cases += in_float32(TUNING[name])
    wholes = ("slot_tables", "last_token", "token_ids", "positions", "blocks", "offsets", "places", "lengths", "tables")
    numbers = {"numbers": "*i32", **dict.fromkeys(wholes, "*i64"), "rows": "i32", "stride": "i32"}
    cases.append((stepping.prepare_kernel, numbers, {"WIDTH": 128, "BLOCK_SIZE": 64, "COPIED": 128}, 1, 3))
    logits = {"logits": "*bf16", "bests": "*fp32", "where": "*i32"}
    masks, size = {"lines": "*i32", "bits": "*i32"}, {"VOCABULARY": 128256, "LOGITS": stepping.LOGITS}
    likeliest = logits | masks, size | {"PARTS": 16, "MASKED": True}
    cases += [(stepping.best_kernel, *likeliest, 8, 3), (stepping.bar_kernel, masks | {"values": "*bf16"}, size, 4, 3)]
    picked = {"bests": "*fp32", "where": "*i32", "slots": "*i32", "last_token": "*i64", "token_ids": "*i64"}
    picked["finite"] = "*u8"
    cases.append((stepping.pick_kernel, picked, {"VOCABULARY": 128256, "PARTS": 16, "PADDED": 16}, 1, 3))
    summed = {"x": "*bf16", "out": "*bf16", "data": "*i64", "flags": "*i64", "epochs": "*i32", "count": "i32"}
    ranks = {"RANK": 0, "SIZE": 2, "REGION": all_reduce.REGION, "TILE": all_reduce.TILE}
    cases.append((all_reduce.one_shot_kernel, summed | {"span": "i32"}, ranks, 4, 3))
    return cases


def mixtures(tuned: Tuning) -> Cases:
    """Qwen3-30B-A3B's shape by each cut, gpt-oss' with biases, Nemotron 3 Nano's without gates, Llama 4's that weigh
    what enters, and the routes of the first and of DeepSeek-V3."""
    size = {"EXPERTS": 128, "PADDED": 128, "TOP_K": 8}
    listed = {"shares": "*fp32", "places": "*i64", "amounts": "*fp32", "rows": "i32"}
    listed |= dict.fromkeys(("counts", "lists", "numbers"), "*i32")
    cases: Cases = [(experts.list_kernel, listed, size | {"PLACED": True}, 1, 3)]
    types = dict.fromkeys(("x", "matrices", "others", "biases", "other_biases", "out"), "*bf16")
    types |= {"counts": "*i32", "lists": "*i32", "amounts": "*fp32", "rows": "i32", "limit": "fp32"}
    for cut in tuned.experts:
        shape = {"EXPERTS": 128, "PADDED": 128, "STEP": cut.step, "ROWS": cut.rows}
        shape |= dict.fromkeys(("LIMITED", "BIASED", "SQUARED", "WEIGHED"), False)
        gated = shape | {"K": 2048, "N": 768, "PAIRS": 8, "BLOCK": cut.block // 2, "GATED": True}
        back = shape | {"K": 768, "N": 2048, "PAIRS": 1, "BLOCK": cut.block, "GATED": False}
        cases += [(experts.experts_kernel, types, each, cut.warps, cut.stages) for each in (gated, back)]
    cut = tuned.experts[0]
    odd = shape | {"K": 2880, "N": 2880, "PAIRS": 4, "BLOCK": cut.block // 2, "STEP": 64, "ROWS": cut.rows}
    odd |= {"EXPERTS": 32, "PADDED": 32, "GATED": True, "BIASED": True, "LIMITED": True}
    squared = shape | {"K": 2688, "N": 1856, "PAIRS": 6, "BLOCK": cut.block, "ROWS": cut.rows, "STEP": cut.step}
    squared |= {"GATED": False, "SQUARED": True}
    early = shape | {"K": 5120, "N": 8192, "PAIRS": 1, "BLOCK": cut.block // 2, "ROWS": cut.rows, "STEP": cut.step}
    early |= {"GATED": True, "WEIGHED": True}
    cases += [(experts.experts_kernel, types, each, cut.warps, cut.stages) for each in (odd, squared, early)]
    summed = {"parts": "*bf16", "numbers": "*i32", "amounts": "*fp32", "out": "*bf16"}
    size = {"WIDTH": 2048, "COLUMNS": experts.COLUMNS, "TOP_K": 8, "WEIGHED": True}
    cases.append((experts.sum_kernel, summed, size, 4, 3))
    routed = {"logits": "*bf16", "correction": "*fp32", "shares": "*fp32", "scale": "fp32"}
    for groups, (corrected, count) in (((1, 1, 1), (False, 128)), ((8, 4, 2), (True, 256))):
        constants: dict[str, Any] = dict(zip(("GROUPS", "TOP_GROUPS", "GROUP_BEST"), groups, strict=True))
        constants |= {"EXPERTS": count, "TOP_K": 8, "HEIGHT": groups[0], "WIDTH": count // groups[0]}
        constants |= {"SIGMOID": corrected, "RENORMALISE": True, "CORRECTED": corrected}
        cases.append((routes.route_kernel, routed, constants, 1, 3))
    return cases


def states() -> Cases:
    """Qwen3-Next's shape, and Granite 4's of Mamba 2."""
    over = {"x": "*bf16", "state": "*fp32", "slots": "*i32", "lengths": "*i64", "out": "*bf16"}
    over |= {"weight": "*fp32", "bias": "*fp32"}
    scanned = over | {"xbc": "*bf16", "steps": "*bf16", "rates": "*fp32", "shifts": "*fp32", "skips": "*fp32"}
    heads = {"KEY_HEADS": 1, "HEADS": 128, "KEYS": 128, "VALUES": 64, "PADDED": 128, "BLOCK": 32}
    ruled = over | {"qkv": "*bf16", "gates": "*bf16", "rates": "*fp32", "shifts": "*fp32"}
    shape = {"KEY_HEADS": 16, "HEADS": 32, "KEYS": 128, "VALUES": 128, "PADDED": 128, "BLOCK": 32, "TURNS": False}
    conv = {"WIDTH": 8192, "TAPS": 4, "COLUMNS": recurrent.COLUMNS}
    cases = [(recurrent.conv_kernel, over, conv | {"BIASED": biased}, 2, 3) for biased in (False, True)]
    cases += [(recurrent.delta_kernel, ruled, shape, 4, 3), (recurrent.scan_kernel, scanned, heads, 4, 3)]
    return cases


def latents(tuned: Tuning, cache: str) -> Cases:
    """DeepSeek-V3's shape: single rows, prompts, and what they write."""
    over = dict.fromkeys(("q", "rest", "out"), "*bf16") | dict.fromkeys(("tables", "lengths", "row_starts"), "*i64")
    over |= {"cache": cache, "tiles": "*i32", "arrived": "*i32", "table_stride": "i32", "scale": "fp32"}
    over |= dict.fromkeys(("parts", "peaks"), "*fp32")
    launch = tuned.latent
    shape = {"HEADS": 128, "LATENT": 512, "REST": 64, "PADDED": 512, "REST_PADDED": 64, "BLOCK_SIZE": 64}
    shape |= {"QUERIES": launch.rows, "TILE": launch.tile}
    ways = ({"SPLITS": 16, "TILED": False}, {"SPLITS": 1, "TILED": True})
    cases: Cases = [(latent.latent_kernel, over, shape | each, launch.warps, launch.stages) for each in ways]
    written = dict.fromkeys(("first", "second"), "*bf16") | {"places": "*i64", "caches": cache, "others": cache}
    sizes = {"HEADS": 1, "WIDTH": 512, "OTHER": 64, "BESIDE": True, "BLOCK_SIZE": 64, "PADDED": 512}
    return [*cases, (writes.write_kernel, written, sizes, 1, 3)]


def in_float32(tuned: Tuning) -> Cases:
    """What has cuts of its own there."""
    types = dict.fromkeys(("x", "matrices", "others", "biases", "other_biases", "out"), "*fp32")
    types |= {"counts": "*i32", "lists": "*i32", "amounts": "*fp32", "rows": "i32", "limit": "fp32"}
    cases: Cases = []
    for cut in tuned.experts:
        shape = {"EXPERTS": 128, "PADDED": 128, "STEP": cut.step // 2, "ROWS": cut.rows}
        shape |= {"K": 2048, "N": 768, "PAIRS": 8, "BLOCK": cut.block // 2, "GATED": True}
        shape |= dict.fromkeys(("LIMITED", "BIASED", "SQUARED", "WEIGHED"), False)
        cases.append((experts.experts_kernel, types, shape, cut.warps, cut.stages))
    of_latents = latents(replace(tuned, latent=latent.WIDE), "*fp32")[:2]
    return cases + [(each[0], each[1] | dict.fromkeys(("q", "rest", "out"), "*fp32"), *each[2:]) for each in of_latents]


def low_ranks(tuned: Tuning) -> Cases:
    """What adapters of rank 16 add to gate and up."""
    over = dict.fromkeys(("order", "firsts"), "*i64") | {"adapters": "*i32", "low": "*fp32", "count": "i32"}
    both = {"NUMBER": 2, "RANK": 16, "PADDED": 16, "ROWS": adapters.FEW, "SPLITS": 4}
    shrunk, grown = over | dict.fromkeys(("x", "down"), "*bf16"), over | dict.fromkeys(("y", "up"), "*bf16")
    return [
        (adapters.shrink_kernel, shrunk, both | {"K": 4096, "STEP": adapters.COLUMNS}, 4, 3),
        (adapters.expand_kernel, grown | {"cuts": "*i32"}, both | {"N": 28672, "OUTPUTS": adapters.OUTPUTS}, 4, 3),
    ]


def products(tuned: Tuning) -> Cases:
    """Of each kind of weights a product, with what adapters add to it or without, and what unpacks them."""
    alone = dict.fromkeys(("RANK", "SECOND", "THIRD"), 0) | dict.fromkeys(("RANKS", "SHRUNK", "COLUMNS"), 1)
    cases: Cases = []
    types = dict.fromkeys(("x", "bias", "residual", "gain", "plain", "down", "up", "out", "gained"), "*bf16")
    types |= dict.fromkeys(("squares", "sums", "parts", "units", "totals", "low"), "*fp32")
    types |= {"groups": "*i32", "arrived": "*i32", "adapters": "*i32", "rows": "i32", "shrinking": "i32", "eps": "fp32"}
    for kind, silu, rows in ((0, False, 16), (1, True, 32), (2, False, 64)):
        cut, packed = tuned.cut(kind, rows, silu=silu), {"codes": "*i32" if kind else "*bf16"}
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


def each_once(name: str) -> Cases:
    """Of cases that differ in nothing but sizes and types the first; of the elder target of a family one a kernel."""
    found: dict[Any, Any] = {}
    for case in kernels(name):
        ways = {each: value for each, value in case[2].items() if isinstance(value, bool) or each in ("KIND", "EACH")}
        found.setdefault((case[0], *(() if name in ELDER else sorted(ways.items()))), case)
    return list(found.values())


@pytest.mark.timeout(900)  # several times what the longest target takes alone, beside others
@pytest.mark.parametrize("cases", [each_once, pytest.param(kernels, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", list(TARGETS))
def test_every_kernel_compiles_ahead(
    name: str, cases: Callable[[str], Cases], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for kernel, types, constants, warps, stages in cases(name):
        operands = {each: types[each] for each in kernel.arg_names if each not in constants}
        signature = {each: operands.get(each, "constexpr") for each in kernel.arg_names}
        places = {each: (place,) for place, each in enumerate(kernel.arg_names)}
        aligned = {places[each]: [["tt.divisibility", 16]] for each, kind in operands.items() if kind[0] == "*"}
        constexprs = {places[each]: value for each, value in constants.items()}
        in_gluon = isinstance(kernel, GluonJITFunction)
        source = (GluonASTSource if in_gluon else ASTSource)(kernel, signature, constexprs, aligned)
        compiled = compile(source, target=TARGETS[name], options={"num_warps": warps, "num_stages": stages})
        binary = "cubin" if name.startswith("sm") else "hsaco"
        assert compiled.asm[binary][:4] == b"\x7fELF"
        assert compiled.metadata.shared <= SHARED_BYTES[name], (kernel, compiled.metadata.shared)
