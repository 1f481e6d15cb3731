"""A gateway's PrefixMap hears of its own starts and, through the worker, of the other gateways'."""

from polyfleet.gateway.fleet.prefix_news import PrefixNewsReader
from polyfleet.placement.prefixes import PrefixMap
from polyfleet.v1 import fleet_pb2
from polyfleet.v1 import worker_pb2 as pb


def news(number: int, *chains: list[int], whole: bool = False) -> pb.PrefixNews:
    return pb.PrefixNews(number=number, chains=[pb.PrefixChain(grains=chain) for chain in chains], whole=whole)


def test_own_starts_and_others_count_alike() -> None:
    prefixes = PrefixMap()
    reader = PrefixNewsReader("w", prefixes)
    assert reader.hear(news(0, whole=True))
    assert reader.started([1, 2]) == 0
    assert reader.started([1, 2, 3]) == 128
    assert reader.hear(news(0, [7, 8]))
    assert reader.hear(news(1, [7, 9], [6]))
    assert prefixes.cached_tokens([7, 9]) == {"w": 128}
    assert prefixes.cached_tokens([6]) == {"w": 64}


def test_after_a_gap_nothing_counts_until_all_was_told_again() -> None:
    prefixes = PrefixMap()
    reader = PrefixNewsReader("w", prefixes)
    assert reader.hear(news(0, [1], whole=True))
    assert not reader.hear(news(3, [2]))
    assert reader.hear(news(4, [3]))  # asked already
    assert prefixes.cached_tokens([2]) == prefixes.cached_tokens([3]) == {}
    assert reader.hear(news(0, [1], [2], whole=True))
    assert reader.hear(news(2, [3]))
    assert prefixes.cached_tokens([3]) == {"w": 64}
    assert prefixes.num_grains == 3


def test_a_lost_session_and_another_model_hold_nothing() -> None:
    prefixes = PrefixMap()
    reader = PrefixNewsReader("w", prefixes)
    reader.of_model(fleet_pb2.ModelInfo(fingerprint="a", num_blocks=8, block_size=16))
    reader.started([1, 2, 3])
    assert prefixes.cached_tokens([1, 2, 3]) == {"w": 128}  # as much as there is room for
    reader.of_model(fleet_pb2.ModelInfo(fingerprint="b", num_blocks=8, block_size=16))
    assert prefixes.num_grains == 0
    reader.started([1])
    reader.lost()
    assert prefixes.num_grains == 0
