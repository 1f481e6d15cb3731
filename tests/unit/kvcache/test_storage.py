"""The KV tensors: shape, size, and cleaning of blocks."""

import torch

from polyfleet.graph.kernel_graph import PerToken
from polyfleet.kvcache.storage import KvStorage, bytes_per_token

CACHES = (PerToken(2, 16), PerToken(2, 16), PerToken(1, 24))


def test_shape_and_bytes() -> None:
    storage = KvStorage.allocate(CACHES, 5, 4, torch.bfloat16, torch.device("cpu"))
    assert [tuple(cache.shape) for cache in storage.caches] == [(2, 5, 2, 4, 16), (2, 5, 2, 4, 16), (2, 5, 1, 4, 24)]
    assert not any(cache.any() for cache in storage.caches)
    held = sum(cache.nbytes for cache in storage.caches)
    assert held == 5 * 4 * bytes_per_token(CACHES, torch.bfloat16)


def test_clear_touches_these_blocks_alone() -> None:
    storage = KvStorage.allocate(CACHES, 5, 4, torch.float32, torch.device("cpu"))
    for cache in storage.caches:
        cache[:] = torch.randn(cache.shape)
    storage.caches[1][:, 2, 0, 3] = float("nan")
    storage.caches[2][:, 4, 0, 0, :3] = float("-inf")
    storage.caches[0][:, 3, 0, 0, 0] = float("inf")
    before = [cache.clone() for cache in storage.caches]
    storage.clear(torch.tensor([4, 2, 2]))
    assert not any(cache[:, [2, 4]].any() for cache in storage.caches)
    for cache, old in zip(storage.caches, before, strict=True):
        assert torch.equal(cache[:, [0, 1, 3]], old[:, [0, 1, 3]])


def test_what_was_read_is_written_back_by_position() -> None:
    here, there = (KvStorage.allocate(CACHES, 5, 4, torch.float32, torch.device("cpu")) for _ in range(2))
    for cache in here.caches:
        cache[:] = torch.randn(cache.shape)
    contents = here.read(torch.tensor([3, 1]))
    assert [tuple(each.shape) for each in contents] == [(2, 8, 2, 16), (2, 8, 2, 16), (2, 8, 1, 24)]
    assert torch.equal(contents[1][0, 5], here.caches[1][0, 1, :, 1])  # the sixth position is the second of block 1
    assert torch.equal(contents[1][1, 3], here.caches[1][1, 3, :, 3])
    there.write(torch.tensor([0, 4]), contents)
    for mine, theirs in zip(there.caches, here.caches, strict=True):
        assert torch.equal(mine[:, [0, 4]], theirs[:, [3, 1]])
        assert not mine[:, [1, 2, 3]].any()


def test_rows_of_blocks_hold_what_each_of_them_alone_would_give() -> None:
    here, there = (KvStorage.allocate(CACHES, 5, 4, torch.float32, torch.device("cpu")) for _ in range(2))
    for cache in here.caches:
        cache[:] = torch.randn(cache.shape)
    blocks = torch.tensor([3, 1])
    alone = torch.stack([here.read_flat(block[None]) for block in blocks])
    rows = torch.empty_like(alone).view(torch.uint8)
    here.read_rows(blocks, rows)
    assert torch.equal(rows, alone.view(torch.uint8))
    there.write_rows(torch.tensor([0, 4]), rows)
    for mine, theirs in zip(there.caches, here.caches, strict=True):
        assert torch.equal(mine[:, [0, 4]], theirs[:, [3, 1]])
        assert not mine[:, [1, 2, 3]].any()
