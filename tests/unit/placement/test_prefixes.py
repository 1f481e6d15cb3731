"""PrefixMap: who holds which beginning of a prompt, within bounds."""

from collections import OrderedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyfleet.placement.prefixes import PrefixMap
from polyfleet.wire.hashing import MAX_GRAINS, cache_salt, grain_numbers


def prompt(*parts: tuple[int, int]) -> tuple[int, ...]:
    """Token ids: so many of each value."""
    return tuple(token for token, count in parts for _ in range(count))


def test_grains_are_chained_whole_and_of_64_tokens() -> None:
    shared, own = prompt((1, 128), (2, 64)), prompt((1, 128), (3, 100))
    one, other = grain_numbers(shared), grain_numbers(own)
    assert (len(one), len(other)) == (3, 3)
    assert one[:2] == other[:2]
    assert one[2] != other[2]
    assert grain_numbers(prompt((2, 64)))[0] not in one  # the same tokens elsewhere
    assert grain_numbers(prompt((1, 63))) == ()
    assert all(0 <= number < 2**64 for number in one)


def test_tenants_share_no_grain_and_endless_prompts_have_a_bound() -> None:
    tokens = prompt((1, 640))
    assert not set(grain_numbers(tokens, cache_salt("a"))) & set(grain_numbers(tokens, cache_salt("b")))
    assert len(grain_numbers((1,) * (64 * MAX_GRAINS + 640))) == MAX_GRAINS


def test_a_worker_holds_what_was_placed_there_up_to_where_prompts_part() -> None:
    prefixes = PrefixMap()
    first = grain_numbers(prompt((1, 256), (2, 256)))
    prefixes.learn("w-1", first)
    prefixes.learn("w-2", first[:1])
    assert prefixes.cached_tokens(first) == {"w-1": 512, "w-2": 64}
    assert prefixes.cached_tokens(grain_numbers(prompt((1, 256), (3, 256)))) == {"w-1": 256, "w-2": 64}
    assert prefixes.cached_tokens(grain_numbers(prompt((9, 256)))) == {}
    assert prefixes.cached_tokens(()) == {}
    prefixes.forget("w-1")
    assert prefixes.cached_tokens(first) == {"w-2": 64}
    assert prefixes.num_grains == 1


def test_of_a_full_worker_the_prompts_longest_unused_go_their_ends_first() -> None:
    prefixes = PrefixMap()
    prefixes.set_capacity("w-1", 6 * 64)
    old, used, new = ([10 * n + i for i in range(1, 4)] for n in (1, 2, 3))
    for chain in (old, used, old[:1], used, new[:2]):
        prefixes.learn("w-1", chain)
    assert prefixes.cached_tokens(used) == {"w-1": 192}
    assert prefixes.cached_tokens(new) == {"w-1": 128}
    assert prefixes.cached_tokens(old) == {"w-1": 64}
    prefixes.learn("w-1", list(range(100, 120)))  # longer than the whole cache: its beginning
    assert prefixes.num_grains == 6


def test_all_workers_together_keep_the_bound() -> None:
    prefixes = PrefixMap(max_grains=100)
    for number in range(500):
        prefixes.learn(f"w-{number % 7}", range(10 * number, 10 * number + 5))
        assert prefixes.num_grains <= 100
    nothing = PrefixMap(max_grains=0)
    nothing.learn("w-1", [1, 2])
    assert (nothing.num_grains, nothing.cached_tokens([1, 2])) == (0, {})


chains = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)), max_size=30)


@settings(max_examples=30, deadline=None)
@given(chains, st.integers(1, 12))
def test_it_holds_what_a_plain_least_recently_used_cache_holds(
    paths: list[tuple[int, int, int]], capacity: int
) -> None:
    """Which has the same order of use: a chain's end first, its beginning last."""
    prefixes, plain = PrefixMap(), OrderedDict[int, None]()
    prefixes.set_capacity("w", capacity * 64)
    for path in paths:
        chain = [hash(path[: depth + 1]) & (2**64 - 1) for depth in range(3)][:capacity]
        prefixes.learn("w", chain)
        for each in reversed(chain):
            plain[each] = None
            plain.move_to_end(each)
        while len(plain) > capacity:
            plain.popitem(last=False)
        held = next((n for n, each in enumerate(chain) if each not in plain), len(chain))
        assert prefixes.cached_at("w", chain) == held
        assert prefixes.num_grains == len(plain)


@pytest.mark.parametrize("length", [1, 2, 3, 31, 32])
@pytest.mark.parametrize("held", [0, 1, 2, 30, 31, 32])
def test_the_depth_is_found_wherever_it_lies(length: int, held: int) -> None:
    prefixes = PrefixMap()
    prefixes.learn("w", range(held))
    assert prefixes.cached_at("w", range(length)) == min(held, length)


@pytest.mark.parametrize("first", range(6))
@pytest.mark.parametrize("second", range(6))
def test_each_worker_is_told_apart_however_much_the_one_before_it_holds(first: int, second: int) -> None:
    prefixes = PrefixMap()
    chain = list(range(1, 6))
    prefixes.learn("w-1", chain[:first])
    prefixes.learn("w-2", chain[:second])
    held = {"w-1": first * 64, "w-2": second * 64}
    assert prefixes.cached_tokens(chain) == {worker: tokens for worker, tokens in held.items() if tokens}
