"""The KV tensors: shape, size, and cleaning of blocks."""

import torch

from polyfleet.graph.kernel_graph import PerToken
from polyfleet.kvcache.storage import KvStorage, bytes_per_block

CACHES = (PerToken(2, 16), PerToken(2, 16), PerToken(1, 24))


def test_shape_and_bytes() -> None:
    storage = KvStorage.allocate(CACHES, 5, 4, torch.bfloat16, torch.device("cpu"))
    for caches in (storage.keys, storage.values):
        assert [tuple(cache.shape) for cache in caches] == [(5, 2, 4, 16), (5, 2, 4, 16), (5, 1, 4, 24)]
        assert not any(cache.any() for cache in caches)
    held = sum(cache.nbytes for cache in (*storage.keys, *storage.values))
    assert held == 5 * bytes_per_block(CACHES, 4, torch.bfloat16)


def test_make_finite_touches_what_is_not_finite_in_these_blocks_alone() -> None:
    storage = KvStorage.allocate(CACHES, 5, 4, torch.float32, torch.device("cpu"))
    for caches in (storage.keys, storage.values):
        for cache in caches:
            cache[:] = torch.randn(cache.shape)
        caches[1][2, 0, 3] = float("nan")
        caches[2][4, 0, 0, :3] = float("-inf")
        caches[0][3, 0, 0, 0] = float("inf")
    before = [cache.clone() for cache in storage.keys]
    storage.make_finite((4, 2, 2))
    assert all(cache[[2, 4]].isfinite().all() for cache in (*storage.keys, *storage.values))
    assert storage.keys[0][3, 0, 0, 0] == float("inf")
    for cache, old in zip(storage.keys, before, strict=True):
        finite = old.isfinite()
        assert torch.equal(cache[finite], old[finite])
