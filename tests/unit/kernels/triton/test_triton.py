"""Triton's kernels where there is no device: compiled ahead, for four targets."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton")

from tests.unit.kernels.triton.product_cases import Cases, products  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource, compile  # noqa: E402
from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction  # noqa: E402

from polyfleet.kernels.triton import (  # noqa: E402
    activation,
    adapters,
    all_reduce,
    decode,
    experts,
    hopper,
    latent,
    norms,
    prefill,
    recurrent,
    rope,
    routes,
    stepping,
    writes,
)
from polyfleet.kernels.triton.tuning import TUNING, Tuning  # noqa: E402

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx90a": GPUTarget("hip", "gfx90a", 64),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
ELDER = ("sm_80", "gfx90a")
SHARED_BYTES = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "gfx90a": 64 * 1024, "gfx942": 64 * 1024}  # of a program
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
    plain, ways = (
        replace(tuned, assembly=False, bytes=False, alone=None),
        ((0, True, 64), (1, False, 64), (2, False, 128)),
    )
    for kernel, over, size, warps, _ in products(plain, *ways, wide=True)[:3]:
        over = over | {each: "*fp32" for each, kind in over.items() if kind == "*bf16"}
        size = size | {"RANK": 0, "SPAN": 64, "STEP": min(64, size["STEP"] * 2)}
        cases.append((kernel, over, size, warps, size["STAGES"]))
    both = latents(replace(tuned, latent=latent.WIDE), "*fp32")[:2]
    return cases + [(each[0], each[1] | dict.fromkeys(("q", "rest", "out"), "*fp32"), *each[2:]) for each in both]


def low_ranks(tuned: Tuning) -> Cases:
    """What adapters of rank 16 add to gate and up."""
    over = dict.fromkeys(("order", "firsts"), "*i64") | {"adapters": "*i32", "low": "*fp32", "count": "i32"}
    both = {"NUMBER": 2, "RANK": 16, "PADDED": 16, "ROWS": adapters.FEW, "SPLITS": 4}
    shrunk, grown = over | dict.fromkeys(("x", "down"), "*bf16"), over | dict.fromkeys(("y", "up"), "*bf16")
    return [
        (adapters.shrink_kernel, shrunk, both | {"K": 4096, "STEP": adapters.COLUMNS}, 4, 3),
        (adapters.expand_kernel, grown | {"cuts": "*i32"}, both | {"N": 28672, "OUTPUTS": adapters.OUTPUTS}, 4, 3),
    ]


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
