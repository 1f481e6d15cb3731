"""PrefixMap: which worker holds which prompt prefixes, in grains of 64 tokens whatever a worker's block size. Pure.

A chain is a prompt's grain hashes from its first grain on (`wire.hashing.grain_numbers`). What was placed on a worker
is taken to be in its cache until as many other grains have come as its cache has room for, the least recently used
first: as the worker itself does. A grain counts as used after those behind it, so it outlives them, and what the map
holds of a worker is prefixes without gaps: their length is found by bisection.
"""

from collections.abc import Container, Sequence
from itertools import islice

from polyfleet.wire.hashing import PLACEMENT_GRAIN

GRAIN_BYTES = 75  # of one grain in the map, about: its number, and its place in a dict
SLACK = 64  # a full worker loses one grain in so many beyond those it must: finding the oldest costs each time


class PrefixMap:
    """At most `max_grains` of all workers together; of one worker at most what `set_capacity` says."""

    def __init__(self, max_grains: int = 1_000_000) -> None:
        self._max_grains = max_grains
        self._held: dict[str, dict[int, None]] = {}  # by worker, least recently used first
        self._starts: dict[int, set[str]] = {}  # by first grain, the workers that hold it
        self._capacity: dict[str, int] = {}
        self.num_grains = 0

    def set_capacity(self, worker_id: str, tokens: int) -> None:
        """How many tokens the worker's KV cache has room for; 0: not known."""
        if tokens:
            self._capacity[worker_id] = max(1, tokens // PLACEMENT_GRAIN)
        else:
            self._capacity.pop(worker_id, None)

    def learn(self, worker_id: str, chain: Sequence[int]) -> None:
        """A prompt with these grains was placed there."""
        held = self._held.setdefault(worker_id, {})
        before = len(held)
        most = min(self._capacity.get(worker_id, self._max_grains), self._max_grains)
        used = dict.fromkeys(reversed(chain[:most]))
        for number in used.keys() & held.keys():
            del held[number]
        held.update(used)
        if chain and most:
            self._starts.setdefault(chain[0], set()).add(worker_id)
        self.num_grains += len(held) - before
        if len(held) > most:
            self._evict(worker_id, held, len(held) - most + most // SLACK)
        while (excess := self.num_grains - self._max_grains) > 0:
            largest = max(self._held, key=lambda each: len(self._held[each]))
            oldest = self._held[largest]
            self._evict(largest, oldest, excess + len(oldest) // SLACK)

    def _evict(self, worker_id: str, held: dict[int, None], count: int) -> None:
        gone = list(islice(held, count))  # at once: an iterator steps over all that was deleted before
        for number in gone:
            del held[number]
        for number in self._starts.keys() & gone:
            self._lose_start(worker_id, number)
        self.num_grains -= len(gone)
        if not held:
            self._held.pop(worker_id, None)

    def _lose_start(self, worker_id: str, number: int) -> None:
        holders = self._starts[number]
        holders.discard(worker_id)
        if not holders:
            del self._starts[number]

    def forget(self, worker_id: str) -> None:
        """Its cache is empty, or it has gone."""
        held = self._held.pop(worker_id, {})
        self.num_grains -= len(held)
        for number in held.keys() & self._starts.keys():
            self._lose_start(worker_id, number)

    def cached_tokens(self, chain: Sequence[int]) -> dict[str, int]:
        """By worker, how many tokens of a prompt with these grains it is taken to hold; only those that hold any."""
        if not chain:
            return {}
        found, grains = {}, 0
        for worker_id in self._starts.get(chain[0], ()):
            grains = _depth(self._held[worker_id], chain, grains)
            found[worker_id] = grains * PLACEMENT_GRAIN
        return found

    def cached_at(self, worker_id: str, chain: Sequence[int]) -> int:
        """How many of the chain's grains, from the first on, that worker is taken to hold."""
        return _depth(self._held.get(worker_id, {}), chain, len(chain))


def _depth(held: Container[int], chain: Sequence[int], guess: int) -> int:
    """How many of the chain's grains are held, first tried around a guess: workers often hold a prompt to where it
    parts from others."""
    low, high = 0, len(chain)
    if guess:
        if chain[guess - 1] not in held:
            high = guess - 1
        elif guess == high or chain[guess] not in held:
            return guess
        else:
            low = guess + 1
    while low < high:
        middle = (low + high + 1) // 2
        if chain[middle - 1] in held:
            low = middle
        else:
            high = middle - 1
    return low
