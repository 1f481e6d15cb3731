"""Adapters of a worker: what it was told to serve, and what its engine has of it. No gRPC here."""

import asyncio
import logging
from collections.abc import Callable, Iterable

from polyfleet.engine.facts import LoadedAdapter
from polyfleet.process.revision import Revision
from polyfleet.serving.engine_client import EngineClient, LoadError
from polyfleet.v1 import fleet_pb2 as fleet

log = logging.getLogger(__name__)


class NoModel(Exception):
    """There is nothing to adapt. The message is one sentence."""


class ServedAdapters:
    """By name, as the worker's info announces them. Two may have the same numbers, which the engine then has once."""

    def __init__(self, info: fleet.WorkerInfo, revision: Revision, engine: Callable[[], EngineClient | None]) -> None:
        self._info = info
        self._revision = revision
        self._engine = engine
        self._known: dict[str, fleet.Adapter] = {}
        self._changing = asyncio.Lock()

    @property
    def known(self) -> list[fleet.Adapter]:
        """All that it was told of, by name; those with a problem are not served."""
        return [self._known[name] for name in sorted(self._known)]

    @property
    def fingerprints(self) -> set[str]:
        """Of those that are served."""
        return {each.fingerprint for each in self._known.values()} - {""}

    async def begin(
        self, wanted: Iterable[fleet.Adapter], loaded: Iterable[LoadedAdapter], *, again: bool = False
    ) -> None:
        """A new model has come, and these with it; `again`: another engine of the same, which loads all there were."""
        if again:
            before, self._known = self.known, {}
            await self.set(before)
            return
        self._known = {each.name: _served(each, found) for each, found in zip(wanted, loaded, strict=True)}
        self._announce()

    async def set(self, wanted: Iterable[fleet.Adapter]) -> list[fleet.Adapter]:
        """Have those and no others; returns what has become of each. Raises NoModel.

        What the engine has is not loaded again, what it could not load before is.
        """
        async with self._changing:
            engine = self._engine()
            if engine is None or not self._info.HasField("model"):
                raise NoModel("The worker has no model that could be adapted.")
            wishes = {each.name: each for each in wanted}
            for name, known in list(self._known.items()):
                if name not in wishes or wishes[name].source != known.source:
                    self._drop(name, engine)
            for name, wish in wishes.items():
                if name not in self._known or self._known[name].problem:
                    adapter = await _loaded(wish, engine)
                    if engine is self._engine():  # else another one loads all of them
                        self._known[name] = adapter
            self._announce()
            return self.known

    def _drop(self, name: str, engine: EngineClient) -> None:
        fingerprint = self._known.pop(name).fingerprint
        if fingerprint and fingerprint not in self.fingerprints:
            engine.drop_adapter(fingerprint)
        log.info("An adapter was dropped.", extra={"adapter": name})

    def _announce(self) -> None:
        del self._info.model.adapters[:]
        self._info.model.adapters.extend(self.known)
        self._revision.advance()


async def _loaded(wish: fleet.Adapter, engine: EngineClient) -> fleet.Adapter:
    try:
        return _served(wish, await engine.add_adapter(wish.source))
    except LoadError as error:
        log.warning("An adapter can't be loaded: %s", error, extra={"adapter": wish.name})
        return fleet.Adapter(name=wish.name, source=wish.source, problem=str(error))


def _served(wish: fleet.Adapter, found: LoadedAdapter) -> fleet.Adapter:
    log.info("An adapter was loaded.", extra={"adapter": wish.name, "rank": found.rank})
    return fleet.Adapter(name=wish.name, source=wish.source, fingerprint=found.fingerprint, rank=found.rank)
