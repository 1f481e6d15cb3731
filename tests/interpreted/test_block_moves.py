"""Blocks moved by one launch for all caches, against the storage's own way, in whatever numbers are kept."""

import pytest
import torch

from polyfleet.executors.blocks.moves import block_moves
from polyfleet.graph.kernel_graph import PerToken
from polyfleet.kernels.cached import BYTES, CODES
from polyfleet.kernels.triton.blocks import BlockMover
from polyfleet.kvcache.storage import KvStorage

BLOCKS = 6


def storage(cache: PerToken, layers: int, size: int, dtype: torch.dtype) -> KvStorage:
    """Of random bytes."""
    made = KvStorage.allocate([cache] * layers, BLOCKS, size, dtype, torch.device("cpu"))
    for each in made.caches:
        each.view(torch.uint8).random_(0, 255)
    return made


def assert_same_then_restore(held: KvStorage, expected: KvStorage, before: list[torch.Tensor]) -> None:
    """Both hold the same bytes; `held` then holds those of before."""
    for mine, theirs, old in zip(held.caches, expected.caches, before, strict=True):
        assert torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8))
        mine.copy_(old)


@pytest.mark.parametrize(
    ("cache", "layers", "size", "dtype"),
    [
        (PerToken(2, 8), 3, 16, torch.float16),  # words of 4 bytes
        (PerToken(1, 6, latent=True), 2, 20, torch.bfloat16),  # one side, and rows that fill no piece
        (PerToken(3, 4), 1, 4, CODES),  # rows of 6 bytes: words of 2
        (PerToken(2, 5), 2, 8, BYTES),  # of 5: words of 1
    ],
)
def test_one_launch_moves_what_the_storage_does(cache: PerToken, layers: int, size: int, dtype: torch.dtype) -> None:
    held = storage(cache, layers, size, dtype)
    moves = block_moves(held, {"triton"})
    assert isinstance(moves, BlockMover)
    before, size_of_one = [each.clone() for each in held.caches], held.read_flat(torch.tensor([0])).nbytes
    for numbers in ([4], [5, 0, 3], []):
        blocks = torch.tensor(numbers, dtype=torch.int64)
        flat = moves.read_flat(blocks)
        assert torch.equal(flat.view(torch.uint8), held.read_flat(blocks).view(torch.uint8))
        moves.write_flat(blocks.flip(0), flat)
        expected = KvStorage(tuple(each.clone() for each in before))
        expected.write_flat(blocks.flip(0), flat)
        assert_same_then_restore(held, expected, before)
        rows, same = (torch.zeros((len(blocks), size_of_one), dtype=torch.uint8) for _ in range(2))
        moves.read_rows(blocks, rows)
        held.read_rows(blocks, same)
        assert torch.equal(rows, same)
        for row, block in zip(rows, blocks, strict=True):
            assert torch.equal(row, held.read_flat(block[None]).view(torch.uint8))
        moves.write_rows(blocks.flip(0), rows)
        expected = KvStorage(tuple(each.clone() for each in before))
        expected.write_rows(blocks.flip(0), rows)
        assert_same_then_restore(held, expected, before)


def test_caches_that_differ_or_have_two_pools_are_left_to_the_storage() -> None:
    where = torch.device("cpu")
    mixed = KvStorage.allocate([PerToken(2, 4), PerToken(1, 4)], BLOCKS, 4, torch.float32, where)
    pools = [PerToken(2, 4)] * 2
    two = KvStorage.allocate(pools, BLOCKS, 4, torch.float32, where, local=frozenset({0}), local_blocks=BLOCKS)
    alike = storage(PerToken(2, 4), 2, 4, torch.float32)
    assert [block_moves(each, {"triton"}) for each in (mixed, two)] == [mixed, two]
    assert block_moves(alike, ()) is alike
