"""What an engine learns of how fast prompts are taken in: what it costs every time, and not once."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from polyfleet.engine.step.sequence import SequenceState
from polyfleet.engine.travel.travel import RATE_SECONDS, Travel
from polyfleet.graph.kernel_graph import PerToken
from polyfleet.kvcache.portable import KvLayout
from polyfleet.kvcache.travelling import Chunk
from polyfleet.wire.tickets import PrefixSource

TOKENS, CHUNKS = 64, 9


class Played:
    """A clock, and beside it an exchange and a room in which all of a prompt has come: adding takes `costs` seconds."""

    def __init__(self, costs: list[float]) -> None:
        self.now, self.costs = 100.0, costs
        self.layout = KvLayout("model", (PerToken(1, 4),), "float16")
        self.host_buffers = None
        self.chunks = [Chunk(at * TOKENS, (np.zeros((2, TOKENS, 1, 4), np.float16),)) for at in range(len(costs))]
        self.over, self.reason, self.seconds = True, "", 0.5
        self.begun = self.most_begun = 0

    @property
    def waiting(self) -> int:
        return len(self.chunks)

    def known_tokens(self, hashes: list[bytes]) -> int:
        return 0

    def begin_add(self, hashes: list[bytes], first: int, caches: Any, read: Any) -> Any:
        self.now += self.costs[first // TOKENS] / 4
        self.begun += 1
        self.most_begun = max(self.most_begun, self.begun)
        return SimpleNamespace(first=first, writing=SimpleNamespace(over=True))

    def end_add(self, addition: Any) -> int:
        self.now += self.costs[addition.first // TOKENS] * 3 / 4
        self.begun -= 1
        return int(addition.first) + TOKENS

    def take(self) -> tuple[Chunk, int] | None:
        return (self.chunks.pop(0), 0) if self.chunks else None

    def fetch(self, *_: Any) -> "Played":
        return self

    def nothing(self, *_: Any) -> None:
        pass

    release = done = clear = nothing


def travelled(costs: list[float], step_seconds: float = 0.0) -> tuple[Travel, Played]:
    """One prompt that has been fetched and taken in, between steps that take so long."""
    played: Any = Played(costs)
    giving: Any = SimpleNamespace(advance=lambda until: None, has_work=False, given_tokens=0, computed_prompts=0)
    travel = Travel(played, played, giving, TOKENS, lambda: 1000.0, lambda: played.now)
    tokens = len(costs) * TOKENS
    sequence: Any = SimpleNamespace(
        **{"reads_prefix": True, "images": None, "num_tokens": tokens + 1, "state": SequenceState.WAITING},
        tokens=lambda first, end: list(range(first, end)),
        chain=lambda count, size: [b"%d" % at for at in range(count)],
        request=SimpleNamespace(cache_salt=b"", adapter=""),
    )
    travel.begin(sequence, PrefixSource("a:1", "", b"t" * 16, b"s" * 32, tokens, 1.0))
    while travel.arriving_tokens:
        played.now += step_seconds
        travel.advance()
    return travel, played


def test_what_is_done_once_the_first_time_costs_no_later_prompt() -> None:
    travel, played = travelled([0.5] + [0.001] * (CHUNKS - 1))
    fetch, taking = travel.counts[-2:]
    assert fetch == pytest.approx(CHUNKS * TOKENS / 0.5)
    assert taking == pytest.approx(TOKENS / 0.001)
    played.now += RATE_SECONDS - 1
    assert travel.counts[-1] == taking
    played.now += 1
    assert travel.counts[-2:] == (0.0, 0.0)  # to be found out again


def test_what_each_chunk_costs_is_learned() -> None:
    travel, _ = travelled([0.004] * CHUNKS)
    assert travel.counts[-1] == pytest.approx(TOKENS / 0.004)


@pytest.mark.parametrize("most", [1, 3, CHUNKS])
def test_no_more_chunks_are_being_written_than_may_be(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyfleet.engine.travel.travel.MOST_BEGUN", most)
    travel, played = travelled([0.0001] * CHUNKS, step_seconds=1.0)
    assert played.most_begun == most
    assert travel.fetched_tokens == CHUNKS * TOKENS
