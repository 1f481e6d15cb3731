"""Attention of the CPU library to the bit: a row's result depends on its own sequence and position, on nothing else.

Not on who else is in the step, on threads, on how the prompt was cut, or on where blocks lie and how large they are.
"""

import random
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import pytest
from tests.support.cpu_graphs import Floats, FusedBuilder, Params, Rig, available_sets, needs_library, shuffled

pytestmark = [needs_library, pytest.mark.parametrize("instruction_set", available_sets())]

LENGTH = 2180
CHUNK = 64  # positions that the engine handles at a time; its parts are multiples of it
EDGES = sorted({edge + near for edge in range(0, LENGTH, CHUNK) for near in (-1, 0, 1) if 0 <= edge + near < LENGTH})
COMPANIES = (0, 1, 2, 7, 8, 15, 31)
Slices = list[tuple[Sequence[int], int, Sequence[int]]]


def record(graph: FusedBuilder, qkv: int) -> int:
    return graph.attention(graph.rope_cache(qkv, 0), 0)


@lru_cache
def make_rows(heads: int, kv_heads: int, dim: int) -> Floats:
    """Scores of every size: the running maximum changes often in some rows, seldom in others."""
    rng = np.random.default_rng(heads)
    rows = rng.standard_normal((LENGTH, (heads + 2 * kv_heads) * dim), dtype=np.float32)
    rows *= rng.uniform(0.1, 3, (LENGTH, 1)).astype(np.float32)
    return rows


def make_rig(instruction_set: str, shape: tuple[int, int, int], threads: int, block_size: int) -> Rig:
    return Rig(
        make_rows(*shape),
        record,
        instruction_set=instruction_set,
        params=Params(*shape),
        threads=threads,
        block_size=block_size,
        num_blocks=-(-LENGTH // block_size),
    )


@lru_cache
def expected(instruction_set: str, shape: tuple[int, int, int]) -> Floats:
    """All positions at once, one thread, blocks side by side."""
    blocks = range(-(-LENGTH // 16))
    return make_rig(instruction_set, shape, 1, 16).run([(range(LENGTH), 0, blocks)])


def cut(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Begin and end of chunks of these sizes, over and over."""
    begin = 0
    while begin < LENGTH:
        for size in sizes:
            if begin < LENGTH:
                yield begin, min(begin + size, LENGTH)
            begin += size


@pytest.mark.parametrize("shape", [(4, 2, 16), (9, 3, 20)])
@pytest.mark.parametrize(
    ("threads", "block_size", "sizes"),
    [(1, 16, (1, 15, 200)), (2, 16, (256,)), (2, 5, (33, 1, 1, 64)), (3, 100, (700, 129)), (5, 64, (127, 2, 18))],
)
def test_rows_are_the_same_in_any_chunk_and_company(
    instruction_set: str, shape: tuple[int, int, int], threads: int, block_size: int, sizes: Sequence[int]
) -> None:
    wanted = expected(instruction_set, shape)
    rig = make_rig(instruction_set, shape, threads, block_size)
    table = shuffled(-(-LENGTH // block_size))
    for begin, end in cut(sizes):
        np.testing.assert_array_equal(rig.run([(range(begin, end), begin, table)]), wanted[begin:end])
    rng = random.Random(threads)
    for number, position in enumerate(EDGES):
        others = rng.sample(range(LENGTH), COMPANIES[number % len(COMPANIES)])
        places = sorted((position, *others), key=lambda _: rng.random())
        decodes: Slices = [([place], place, table) for place in places]
        np.testing.assert_array_equal(rig.run([([position], position, table)]), wanted[position : position + 1])
        np.testing.assert_array_equal(rig.run(decodes), wanted[places])
        if number % 8 == 0:  # and beside a chunk of a prompt
            begin, end = sorted(rng.sample(range(LENGTH), 2))
            end = min(end, begin + 40)
            mixed = rig.run([*decodes, (range(begin, end), begin, table)])
            np.testing.assert_array_equal(mixed, wanted[[*places, *range(begin, end)]])


def test_one_sequence_is_the_same_with_any_number_of_threads(instruction_set: str) -> None:
    """Alone, it is split among threads; so is one key-value head."""
    shape, table = (6, 1, 32), shuffled(-(-LENGTH // 16))
    results = []
    for threads in (1, 2, 3, 5):
        rig = make_rig(instruction_set, shape, threads, 16)
        rig.run([(range(LENGTH), 0, table)])
        results.append(np.concatenate([rig.run([([position], position, table)]) for position in EDGES[::3]]))
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])
    assert np.isfinite(results[0]).all()
