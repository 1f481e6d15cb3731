"""HostTier: what was put comes back, the least recently used goes first."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfleet.graph.kernel_graph import PerToken
from polyfleet.kvcache.portable import Array, KvLayout
from polyfleet.kvcache.tiers import HostTier

LAYOUT = KvLayout("model", (PerToken(2, 3), PerToken(1, 5, latent=True)), "float16")
BLOCK = 4


def contents(*numbers: int) -> tuple[Array, ...]:
    """Blocks that hold these numbers."""
    tokens = np.repeat(np.array(numbers, np.float16), BLOCK)
    return tuple(
        np.broadcast_to(tokens[None, :, None, None], (each.sides, len(tokens), each.heads, each.width)).copy()
        for each in LAYOUT.caches
    )


def names(*numbers: int) -> list[bytes]:
    """Hashes of these blocks."""
    return [bytes([number]) for number in numbers]


def test_what_was_put_comes_back_in_any_order() -> None:
    tier = HostTier(LAYOUT, BLOCK, 8)
    tier.put(names(1, 2, 3), contents(1, 2, 3))
    assert tier.known(names(3, 1, 9, 2)) == 2
    for mine, given_ in zip(tier.get(names(3, 1)), contents(3, 1), strict=True):
        assert np.array_equal(mine, given_)
    assert HostTier.bytes_of(LAYOUT, 10) == 10 * 17 * 2


def test_the_tail_of_a_chain_goes_before_what_it_hangs_on() -> None:
    tier = HostTier(LAYOUT, BLOCK, 4)
    tier.put(names(3, 2, 1), contents(3, 2, 1))
    tier.get(names(1, 2, 3))
    tier.put(names(7, 8), contents(7, 8))
    assert [tier.known(names(each)) for each in (1, 2, 3, 7, 8)] == [1, 1, 0, 1, 1]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=6, unique=True), max_size=12))
def test_it_holds_the_last_that_were_put(batches: list[list[int]]) -> None:
    tier, order = HostTier(LAYOUT, BLOCK, 5), list[int]()
    for batch in batches:
        tier.put(names(*batch), contents(*batch))
        for each in batch[:5]:
            order = [number for number in order if number != each] + [each]
        order = order[-5:]
        assert len(tier) == len(order)
        assert tier.known(names(*order)) == len(order)
        for mine, given_ in zip(tier.get(names(*reversed(order))), contents(*reversed(order)), strict=True):
            assert np.array_equal(mine, given_)
