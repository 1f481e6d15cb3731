"""Rotation, cache and attention of the CPU library against float64: shapes, block sizes, chunks, shuffled tables."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from tests.support.cpu_graphs import (
    Floats,
    FusedBuilder,
    Params,
    Rig,
    available_sets,
    dense,
    needs_library,
    shuffled,
)

from polyfleet.kernels.torch.reference import attend, rotate

pytestmark = [needs_library, pytest.mark.parametrize("instruction_set", available_sets())]

TOLERANCE = 2e-3  # keys and values are kept in half precision

# heads, kv heads, head size
SHAPES = [(1, 1, 16), (9, 3, 64), (4, 4, 24), (6, 2, 80), (2, 1, 2), (8, 1, 128), (3, 1, 36)]


def record(graph: FusedBuilder, qkv: int) -> int:
    return graph.attention(graph.rope_cache(qkv, 0), 0)


def make_rows(params: Params, count: int, seed: int = 0) -> Floats:
    width = (params.num_heads + 2 * params.num_kv_heads) * params.head_dim
    return np.random.default_rng(seed).standard_normal((count, width), dtype=np.float32)


def reference(params: Params, rows: Floats, ids: Sequence[int]) -> Floats:
    """Attention of all positions of one sequence."""
    q, k, v = turned(params, rows[list(ids)])
    return attend(q, k, v, 0, params.attention_scale).flatten(1).numpy()


def turned(params: Params, rows: Floats) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries [T, N, D], and keys and values [K, T, D], of rows at positions from 0 on."""
    heads, kv_heads, dim = params.num_heads, params.num_kv_heads, params.head_dim
    qkv = torch.from_numpy(rows).view(len(rows), -1, dim)
    positions, frequencies = torch.arange(len(rows)), torch.tensor(params.inverse_frequencies)
    q, k = (rotate(part, positions, frequencies) for part in (qkv[:, :heads], qkv[:, heads : heads + kv_heads]))
    return q, k.transpose(0, 1), qkv[:, heads + kv_heads :].transpose(0, 1)


@pytest.mark.parametrize("attributes", [(9, 0.0, False), (0, 1.5, False), (0, 0.0, True), (70, 2.0, True)])
def test_windows_caps_and_sinks(instruction_set: str, attributes: tuple[int, float, bool]) -> None:
    """Over so many positions that threads share them."""
    params, count = Params(6, 2, 32), 300
    (window, soft_cap, sunk), scale = attributes, 0.3
    rows, sinks = make_rows(params, count), np.linspace(-1, 3, 6, dtype=np.float32)

    def with_attributes(graph: FusedBuilder, qkv: int) -> int:
        query, name = graph.rope_cache(qkv, 0), "sinks" if sunk else ""
        return graph.paged_attention(query, 0, 6, scale, window=window, soft_cap=soft_cap, sinks=name)

    rig = Rig(
        *(rows, with_attributes, dense("sinks", sinks)), instruction_set=instruction_set, params=params, num_blocks=20
    )
    table = shuffled(20)
    found = [rig.run([(range(count - 1), 0, table)]), rig.run([([count - 1], count - 1, table)])]
    q, k, v = turned(params, rows)
    limits = window, soft_cap, torch.from_numpy(sinks) if sunk else None
    expected = attend(q, k, v, 0, scale, *limits).flatten(1)
    np.testing.assert_allclose(np.concatenate(found), expected.numpy(), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("block_size", [1, 5, 16, 100])
def test_a_prompt_and_its_continuation(instruction_set: str, shape: tuple[int, int, int], block_size: int) -> None:
    params = Params(*shape)
    rows, ids = make_rows(params, 100), list(range(100))
    num_blocks = -(-100 // block_size)
    table = shuffled(num_blocks)
    rig = Rig(
        rows, record, instruction_set=instruction_set, params=params, block_size=block_size, num_blocks=num_blocks
    )
    expected = reference(params, rows, ids)
    start = 0
    for size in (1, 2, 37, 8, 1, 30, 20, 1):  # chunks of every kind, decodes among them
        result = rig.run([(ids[start : start + size], start, table)])
        np.testing.assert_allclose(result, expected[start : start + size], atol=TOLERANCE)
        start += size
    assert start == len(ids)


def test_slices_do_not_see_each_other(instruction_set: str) -> None:
    params = Params(9, 3, 64)
    rows, blocks = make_rows(params, 90), shuffled(40)
    rig = Rig(rows, record, instruction_set=instruction_set, params=params, block_size=8, num_blocks=40)
    sequences = [list(range(5, 60)), list(range(20)), list(range(89, 40, -1))]
    tables = [[blocks.pop() for _ in range(-(-len(ids) // 8))] for ids in sequences]
    computed = [54, 0, 13]  # then: a decode, a whole prompt, a chunk in the middle
    for ids, table, count in zip(sequences, tables, computed, strict=True):
        if count:
            rig.run([(ids[:count], 0, table)])
    upto = [55, 20, 43]
    parts = [(ids[a:b], a, table) for ids, table, a, b in zip(sequences, tables, computed, upto, strict=True)]
    result = rig.run(parts)
    expected = [reference(params, rows, ids)[a:b] for ids, a, b in zip(sequences, computed, upto, strict=True)]
    np.testing.assert_allclose(result, np.concatenate(expected), atol=TOLERANCE)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_long_contexts_are_split_among_threads(instruction_set: str, threads: int) -> None:
    params = Params(6, 2, 32)
    length = 700
    rows, table = make_rows(params, length), shuffled(44)
    rig = Rig(rows, record, instruction_set=instruction_set, params=params, threads=threads, num_blocks=44)
    ids = list(range(length))
    expected = reference(params, rows, ids)
    rig.run([(ids[:-1], 0, table)])
    result = rig.run([(ids[-1:], length - 1, table)])
    np.testing.assert_allclose(result, expected[-1:], atol=TOLERANCE)


def test_only_selected_rows_attend(instruction_set: str) -> None:
    """Without hidden states the engine finishes selected rows only; the cache is filled all the same."""

    def select(graph: FusedBuilder, qkv: int) -> int:
        attended = graph.attention(graph.rope_cache(qkv, 0), 0)
        return graph.silu_mul(graph.select_rows(graph.silu_mul(attended)))

    params = Params(4, 2, 16)
    rows, table = make_rows(params, 50), shuffled(4)
    for keep_hidden in (False, True):
        rig = Rig(rows, select, instruction_set=instruction_set, params=params, keep_hidden=keep_hidden)
        ids = list(range(50))
        first = rig.run([(ids[:30], 0, table)], selected=[29])
        second = rig.run([(ids[30:], 30, table)], selected=[19])
        gated = reference(params, rows, ids)[[29, 49]]
        for _ in range(2):
            gate, up = np.split(gated, 2, axis=1)
            gated = gate / (1 + np.exp(-gate)) * up
        np.testing.assert_allclose(np.concatenate([first, second]), gated, atol=TOLERANCE)


def test_large_scores_do_not_overflow(instruction_set: str) -> None:
    params = Params(2, 1, 16)
    rows, ids = make_rows(params, 40) * np.float32(60), list(range(40))
    rig = Rig(rows, record, instruction_set=instruction_set, params=params)
    np.testing.assert_allclose(rig.all_rows(40), reference(params, rows, ids), rtol=2e-2, atol=0.5)


def test_what_a_block_held_before_is_not_seen(instruction_set: str) -> None:
    """Not even when it was not a number: a sequence that failed leaves such blocks behind."""
    params = Params(2, 1, 16)
    rows, ids = make_rows(params, 20), list(range(20))
    rows[19] = np.nan
    rig = Rig(rows, record, instruction_set=instruction_set, params=params)
    assert not np.isfinite(rig.run([([19] * 16, 0, [2])])).all()
    expected = reference(params, rows[:19], ids[:19])
    for start in range(18):
        result = rig.run([(ids[start : start + 1], start, [2, 0])])
        np.testing.assert_allclose(result, expected[start : start + 1], atol=TOLERANCE)
