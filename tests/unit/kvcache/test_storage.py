"""The KV tensors: shape, size, and cleaning of blocks."""

import torch

from polyfleet.kernels.graph import GraphParams
from polyfleet.kvcache.storage import KvStorage, bytes_per_block

PARAMS = GraphParams(3, 8, 2, 16, 1e-5, (1.0,) * 8, 0.25)


def test_shape_and_bytes() -> None:
    storage = KvStorage.allocate(PARAMS, 5, 4, torch.bfloat16, torch.device("cpu"))
    for cache in (storage.keys, storage.values):
        assert cache.shape == (3, 5, 2, 4, 16)
        assert not cache.any()
    assert storage.keys.nbytes + storage.values.nbytes == 5 * bytes_per_block(PARAMS, 4, torch.bfloat16)


def test_make_finite_touches_what_is_not_finite_in_these_blocks_alone() -> None:
    storage = KvStorage.allocate(PARAMS, 5, 4, torch.float32, torch.device("cpu"))
    for cache in (storage.keys, storage.values):
        cache[:] = torch.randn(cache.shape)
        cache[1, 2, 0, 3] = float("nan")
        cache[2, 4, 1, 0, :3] = float("-inf")
        cache[0, 3, 0, 0, 0] = float("inf")
    before = storage.keys.clone()
    storage.make_finite((4, 2, 2))
    assert storage.keys[:, [2, 4]].isfinite().all()
    assert storage.values[:, [2, 4]].isfinite().all()
    assert storage.keys[0, 3, 0, 0, 0] == float("inf")
    finite = before.isfinite()
    assert torch.equal(storage.keys[finite], before[finite])
