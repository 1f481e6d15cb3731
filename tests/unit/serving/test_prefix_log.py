"""What a worker tells each gateway of the others' prompts, and that nothing is lost or told for ever."""

from polyfleet.serving.prefix_log import MAX_NEWS_CHAINS, PrefixLog, PrefixTeller
from polyfleet.v1 import worker_pb2 as pb


def told(teller: PrefixTeller) -> tuple[bool, int, list[list[int]]] | None:
    news = teller.news()
    return None if news is None else (news.whole, news.number, [list(chain.grains) for chain in news.chains])


def test_a_new_session_hears_all_and_then_what_others_begin() -> None:
    log = PrefixLog()
    log.clear(64_000)
    one = PrefixTeller(log)
    log.add((1, 2), one)
    two = PrefixTeller(log)
    assert told(two) == (True, 0, [[1, 2]])
    assert told(two) is None
    log.add((1, 3), one)
    log.add((4,), two)
    log.add((), one)
    assert told(two) == (False, 1, [[1, 3]])
    assert told(one) == (True, 0, [[1, 2], [1, 3], [4]])
    log.add((5,), one)
    assert told(one) is None
    assert told(two) == (False, 2, [[5]])


def test_a_resync_and_an_emptied_cache_begin_anew() -> None:
    log = PrefixLog()
    teller, other = PrefixTeller(log), object()
    log.add((1,), other)
    assert told(teller) == (True, 0, [[1]])
    teller.resync()
    assert told(teller) == (True, 0, [[1]])
    log.clear(64_000)
    assert told(teller) == (True, 0, [])
    log.add((2,), other)
    assert told(teller) == (False, 0, [[2]])


def test_the_log_keeps_what_the_cache_can_and_a_slow_listener_hears_the_rest_anew() -> None:
    log = PrefixLog()
    log.clear(64 * 10)
    teller, other = PrefixTeller(log), object()
    assert told(teller) == (True, 0, [])
    for number in range(20):
        log.add((number, 100 + number), other)
    assert told(teller) == (True, 0, [[n, 100 + n] for n in range(15, 20)])


def test_news_come_in_pieces_in_order() -> None:
    log = PrefixLog()
    log.clear(64 * 100_000)
    teller, heard = PrefixTeller(log), list[int]()
    for number in range(2 * MAX_NEWS_CHAINS + 5):
        log.add((number,), teller if number == 3 else None)
    while (news := teller.news()) is not None:
        assert news.whole == (not heard)
        assert news.number == len(heard)
        assert isinstance(news, pb.PrefixNews)
        heard += [chain.grains[0] for chain in news.chains]
    assert heard == list(range(2 * MAX_NEWS_CHAINS + 5))
