"""HostTier: what was put comes back, the least recently used goes first."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfleet.graph.kernel_graph import PerToken
from polyfleet.kvcache.portable import Array, KvLayout
from polyfleet.kvcache.tiers import HostTier, Slabs

LAYOUT = KvLayout("model", (PerToken(2, 3), PerToken(1, 5, latent=True)), "float16")
BLOCK = 4


def contents(*numbers: int) -> tuple[Array, ...]:
    """Blocks that hold these numbers."""
    tokens = np.repeat(np.array(numbers, np.float16), BLOCK)
    return tuple(
        np.broadcast_to(tokens[None, :, None, None], (each.sides, len(tokens), each.heads, each.width)).copy()
        for each in LAYOUT.caches
    )


class Pool:
    """A tier over blocks that hold their own numbers, but for what was put back into them."""

    def __init__(self, rows: int) -> None:
        self.back: dict[int, tuple[Array, ...]] = {}
        self.fails = False
        self.tier = HostTier(Slabs(LAYOUT, BLOCK, rows, self.give, self.take), rows)

    def give(self, blocks: Sequence[int]) -> tuple[Array, ...]:
        if self.fails:
            raise OSError("the device is gone")
        return contents(*blocks)

    def take(self, blocks: Sequence[int], caches: Sequence[Array]) -> None:
        for at, block in enumerate(blocks):
            self.back[block] = tuple(each[:, at * BLOCK : (at + 1) * BLOCK] for each in caches)

    def found(self, *numbers: int) -> list[float]:
        """What comes back of these, a number of each block, all of whose numbers are that one."""
        with self.tier.holding(names(*numbers)):
            self.tier.load(names(*numbers), range(100, 100 + len(numbers)))
        found = [self.back[100 + at] for at in range(len(numbers))]
        for each in found:
            shapes = [(cache.sides, BLOCK, cache.heads, cache.width) for cache in LAYOUT.caches]
            assert [cache.shape for cache in each] == shapes
            assert all((cache == each[0].flat[0]).all() for cache in each)
        return [float(each[0].flat[0]) for each in found]


def names(*numbers: int) -> list[bytes]:
    """Hashes of these blocks."""
    return [bytes([number]) for number in numbers]


def test_what_was_put_comes_back_in_any_order() -> None:
    pool = Pool(8)
    assert pool.tier.put(names(1, 2, 3), [1, 2, 3]) == names(1, 2, 3)
    assert pool.tier.put(names(3, 4), [3, 4]) == names(4)
    assert pool.tier.known(names(3, 1, 9, 2)) == 2
    assert pool.found(3, 1) == [3, 1]
    assert [each.tolist() for each in pool.tier.read(b"\2")] == [each.tolist() for each in contents(2)]
    assert HostTier.bytes_of(LAYOUT, 10) == 10 * 17 * 2


def test_what_was_read_elsewhere_comes_back_too() -> None:
    pool = Pool(2)
    for number in (1, 2, 3):
        pool.tier.write(bytes([number]), contents(number))
    assert pool.tier.known(names(2, 3, 1)) == 2
    assert pool.found(3, 2) == [3, 2]


def test_the_tail_of_a_chain_goes_before_what_it_hangs_on() -> None:
    pool = Pool(4)
    pool.tier.put(names(3, 2, 1), [3, 2, 1])
    assert pool.found(1, 2, 3) == [1, 2, 3]
    gone: list[bytes] = []
    pool.tier.before_drop = lambda name: gone.append(name) if pool.tier.read(name) else None
    pool.tier.put(names(7, 8), [7, 8])
    assert [pool.tier.known(names(each)) for each in (1, 2, 3, 7, 8)] == [1, 1, 0, 1, 1]
    assert gone == names(3)


def test_what_is_held_stays_and_of_the_others_as_many_as_there_is_room_for() -> None:
    pool = Pool(3)
    pool.tier.put(names(1, 2, 3), [1, 2, 3])
    with pool.tier.holding(names(1, 2)):
        assert pool.tier.put(names(7, 8), [7, 8]) == names(7)
        pool.tier.write(b"\x09", contents(9))
    assert [pool.tier.known(names(each)) for each in (1, 2, 3, 7, 8, 9)] == [1, 1, 0, 1, 0, 0]
    assert pool.found(1, 2, 7) == [1, 2, 7]


def test_what_fails_keeps_nothing_and_takes_no_room() -> None:
    pool = Pool(3)
    pool.tier.put(names(1), [1])
    pool.fails = True
    with pytest.raises(OSError, match="the device is gone"):
        pool.tier.put(names(1, 2, 3), [1, 2, 3])
    pool.fails = False
    assert (len(pool.tier), pool.tier.known(names(1))) == (1, 1)
    assert pool.tier.put(names(4, 5), [4, 5]) == names(4, 5)
    assert pool.found(1, 4, 5) == [1, 4, 5]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=6, unique=True), max_size=12))
def test_it_holds_the_last_that_were_put(batches: list[list[int]]) -> None:
    pool, order = Pool(5), list[int]()
    for batch in batches:
        pool.tier.put(names(*batch), batch)
        for each in batch[:5]:
            order = [number for number in order if number != each] + [each]
        order = order[-5:]
        assert len(pool.tier) == len(order)
        assert pool.tier.known(names(*order)) == len(order)
        assert pool.found(*reversed(order)) == order[::-1]
