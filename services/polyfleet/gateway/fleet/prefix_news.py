"""What a session tells the gateway's PrefixMap: its own starts, and what the worker says of other gateways'."""

from collections.abc import Sequence

from polyfleet.placement.prefixes import PrefixMap
from polyfleet.v1 import fleet_pb2, worker_pb2
from polyfleet.wire.hashing import PLACEMENT_GRAIN


class PrefixNewsReader:
    """Of one worker's session. News are numbered; after a gap none count until the worker has told all again."""

    def __init__(self, worker_id: str, prefixes: PrefixMap | None) -> None:
        self._worker_id = worker_id
        self._prefixes = prefixes or PrefixMap()
        self._fingerprint = ""
        self._next = 0
        self._asked = False  # for all again

    def of_model(self, model: fleet_pb2.ModelInfo) -> None:
        """What the worker serves, and so how much it can hold; another model's prefixes are gone."""
        if model.fingerprint != self._fingerprint:
            self._fingerprint = model.fingerprint
            self._prefixes.forget(self._worker_id)
        self._prefixes.set_capacity(self._worker_id, model.num_blocks * model.block_size)

    def started(self, grains: Sequence[int]) -> int:
        """A prompt with these grains goes there; how many tokens of it the worker is taken to have cached already."""
        cached = self._prefixes.cached_at(self._worker_id, grains) * PLACEMENT_GRAIN
        if grains:
            self._prefixes.learn(self._worker_id, grains)
        return cached

    def hear(self, news: worker_pb2.PrefixNews) -> bool:
        """Take the worker's news; False when some are missing and it has to tell all again."""
        if news.whole:
            self._prefixes.forget(self._worker_id)
            self._asked = False
        elif self._asked:
            return True
        elif news.number != self._next:
            self._asked = True
            return False
        self._next = news.number + len(news.chains)
        for chain in news.chains:
            self._prefixes.learn(self._worker_id, chain.grains)
        return True

    def lost(self) -> None:
        """The session broke, and maybe the worker with it: what it had cached is not known."""
        self._prefixes.forget(self._worker_id)
        self._next, self._asked = 0, False
