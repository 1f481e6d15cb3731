"""Models whose rows see a window in all layers: blocks before it come back while a sequence runs."""

import random

import pytest
from tests.support.batching import Outcomes, make_batcher, prompt, request, run_all
from tests.support.fake_executor import next_token

from polyfleet.engine.batching.holdings import held_tokens
from polyfleet.kvcache.pool import BlockPool
from polyfleet.kvcache.prefix import PrefixIndex
from polyfleet.wire.hashing import ROOT_HASH

HORIZON = 10


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_a_sequence_holds_no_more_than_its_window_and_a_step(depth: int, prefix_cache: bool) -> None:
    """It grows to many times what the pool has room for."""
    batcher, _ = make_batcher(
        12, step_tokens=20, context_length=400, horizon=HORIZON, depth=depth, prefix_cache=prefix_cache
    )
    mine = request(1, length=250, max_tokens=100)
    batcher.add(mine)
    outcomes, most = Outcomes(), 0
    while batcher.has_work:
        outcomes.add(batcher.step())
        batcher.check()
        most = max(most, sum(map(bool, map(batcher.pool.references, range(12)))))
    assert most * 4 <= held_tokens(400, HORIZON, depth * 20, 4) < 100
    ids = list(mine.prompt_ids)
    for token in outcomes["s1"].token_ids:
        assert token == next_token(ids[-HORIZON:])
        ids.append(token)
    assert batcher.counters.preemptions == 0


def test_a_beginning_is_found_again_by_the_blocks_that_are_seen() -> None:
    """Those before are gone; equal beginnings of other lengths are not found where they would need them."""
    batcher, _ = make_batcher(16, step_tokens=20, context_length=400, horizon=HORIZON)
    batcher.add(request(1, length=101, max_tokens=1))
    run_all(batcher)
    assert len(batcher.prefixes) == 15, "the place of the first 10 was needed again"
    batcher.add(request(1, length=101, max_tokens=3))
    batcher.add(request(2, max_tokens=3, prompt_ids=prompt(1, 41)))
    outcomes = run_all(batcher)
    assert outcomes["s1"].cached_tokens == 100
    assert outcomes["s2"].cached_tokens == 0
    assert outcomes["s2"].token_ids[0] == next_token(prompt(1, 41)[-HORIZON:])


def test_a_context_that_only_a_window_makes_possible_needs_room_for_that() -> None:
    with pytest.raises(ValueError, match="a context of 400 tokens does not fit a KV pool of 40"):
        make_batcher(10, step_tokens=24, context_length=400, horizon=HORIZON)
    make_batcher(12, step_tokens=24, context_length=400, horizon=HORIZON)


def test_entries_go_in_any_order_and_balance() -> None:
    rng, pool = random.Random(3), BlockPool(12)
    index, held = PrefixIndex(pool, seen=2), list[int]()
    for number in range(400):
        if held and rng.random() < 0.5:
            pool.release([held.pop(rng.randrange(len(held)))])
        elif blocks := pool.allocate(1):
            name = bytes([rng.randrange(40)])
            held.append(index.publish(name, bytes([number % 256]), blocks[0]))
        chain = [bytes([each]) for each in range(rng.randrange(12))]
        count, blocks = index.hit(chain)
        assert len(blocks) == min(count, 2)
        assert blocks == [block for each in chain[max(0, count - 2) : count] for block in index.find([each])]
        pool.check()
        index.check()
    assert ROOT_HASH not in index._entries
