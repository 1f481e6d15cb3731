"""The tokenizers of the fleet's models, by content hash: fetched once, kept as long as a model uses them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

import grpc

from polyfleet.gateway.callbacks import Listeners
from polyfleet.gateway.fleet_client import AssetError
from polyfleet.text.errors import TextAssetsError
from polyfleet.text.model_text import ModelText

RETRY_SECONDS = (0.2, 2.0)  # first and longest pause
log = logging.getLogger(__name__)


class Texts:
    """Cache of `ModelText`. `fetch` gives the assets document of a hash; `changed` is called when one has come."""

    def __init__(self, fetch: Callable[[str], Awaitable[bytes]], changed: Listeners) -> None:
        self._fetch = fetch
        self._changed = changed
        self._ready: dict[str, ModelText] = {}
        self._problems: dict[str, str] = {}
        self._fetching: dict[str, asyncio.Task[None]] = {}

    def want(self, hashes: Iterable[str]) -> None:
        """Hold exactly these: fetch what is missing, drop what nobody uses."""
        wanted = set(hashes)
        for content_hash in self._fetching.keys() - wanted:
            self._fetching.pop(content_hash).cancel()
        for held in (self._ready, self._problems):
            for content_hash in held.keys() - wanted:
                del held[content_hash]
        for content_hash in wanted - self._ready.keys() - self._problems.keys() - self._fetching.keys():
            self._fetching[content_hash] = asyncio.create_task(self._load(content_hash))

    def get(self, content_hash: str) -> ModelText | None:
        """The text of this hash, None while it is not here. Raises TextAssetsError when it can't be used."""
        if content_hash in self._problems:
            raise TextAssetsError(self._problems[content_hash])
        return self._ready.get(content_hash)

    async def _load(self, content_hash: str) -> None:
        pause, longest = RETRY_SECONDS
        while True:
            try:
                document = await self._fetch(content_hash)
                self._ready[content_hash] = await asyncio.to_thread(ModelText, document)
                break
            except TextAssetsError as error:
                log.error("Tokenizer %s can't be used. %s", content_hash, error)
                self._problems[content_hash] = str(error)
                break
            except (AssetError, grpc.aio.AioRpcError) as error:
                log.debug("Tokenizer %s not here yet: %s", content_hash, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, longest)
        del self._fetching[content_hash]
        self._changed.call()

    async def close(self) -> None:
        """Fetch no more."""
        tasks = list(self._fetching.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
