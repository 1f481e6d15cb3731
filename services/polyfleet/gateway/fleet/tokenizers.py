"""The text of the fleet's models, by content hash of their tokenizers: fetched once, kept as long as it is used."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

import grpc

from polyfleet.gateway.errors import ApiError
from polyfleet.gateway.fleet.asset_fetch import AssetError
from polyfleet.gateway.listeners import Listeners
from polyfleet.gateway.prompts.prompts import Prompts
from polyfleet.process.tasks import Tasks, end
from polyfleet.text.errors import TextAssetsError
from polyfleet.text.model_text import ModelText
from polyfleet.wire.limits import FieldError

RETRY_SECONDS = (0.2, 2.0)  # first and longest pause
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """Both ways of a model's text."""

    prompts: Prompts
    answers: ModelText
    document: bytes  # both are made of it


class Tokenizers:
    """Cache of `Tokenizer`. `fetch` gives the assets document of a hash; `changed` is called when one has come."""

    def __init__(
        self,
        fetch: Callable[[str], Awaitable[bytes]],
        changed: Listeners,
        make_prompts: Callable[[bytes], Prompts],
    ) -> None:
        self._fetch = fetch
        self._changed = changed
        self._make_prompts = make_prompts
        self._ready: dict[str, Tokenizer] = {}
        self._problems: dict[str, str] = {}
        self._fetching: dict[str, asyncio.Task[None]] = {}
        self._chores = Tasks()

    def want(self, hashes: Iterable[str]) -> None:
        """Hold exactly these: fetch what is missing, drop what nobody uses."""
        wanted = set(hashes)
        for content_hash in self._fetching.keys() - wanted:
            self._fetching.pop(content_hash).cancel()
        for content_hash in self._problems.keys() - wanted:
            del self._problems[content_hash]
        for content_hash in self._ready.keys() - wanted:
            self._chores.start(self._ready.pop(content_hash).prompts.close())
        for content_hash in wanted - self._ready.keys() - self._problems.keys() - self._fetching.keys():
            self._fetching[content_hash] = self._chores.start(self._load(content_hash))

    def get(self, content_hash: str) -> Tokenizer | None:
        """The text of this hash, None while it is not here. Raises TextAssetsError when it can't be used."""
        if content_hash in self._problems:
            raise TextAssetsError(self._problems[content_hash])
        return self._ready.get(content_hash)

    def document(self, content_hash: str) -> bytes | None:
        """The assets of this hash, None while they are not here."""
        found = self._ready.get(content_hash)
        return found.document if found else None

    async def _load(self, content_hash: str) -> None:
        pause, longest = RETRY_SECONDS
        while True:
            try:
                document = await self._fetch(content_hash)
                answers = await asyncio.to_thread(ModelText, document)
                tokenizer = self._ready[content_hash] = Tokenizer(self._make_prompts(document), answers, document)
                self._chores.start(_prepare(content_hash, tokenizer.prompts))
                break
            except TextAssetsError as error:
                log.error("Tokenizer %s can't be used. %s", content_hash, error)
                self._problems[content_hash] = str(error)
                break
            except (AssetError, grpc.aio.AioRpcError) as error:
                log.debug("Tokenizer %s not here yet: %s", content_hash, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, longest)
            except Exception:  # a fault of ours: who asks for the model hears of it instead of waiting for ever
                log.exception("Tokenizer %s can't be used.", content_hash)
                self._problems[content_hash] = "The gateway failed on this model's tokenizer; its log says why."
                break
        del self._fetching[content_hash]
        self._changed.call()

    async def close(self) -> None:
        """Fetch no more; end the processes."""
        await end(*self._fetching.values())
        await asyncio.gather(*(each.prompts.close() for each in self._ready.values()))
        await self._chores.wait()


async def _prepare(content_hash: str, prompts: Prompts) -> None:
    """Find out about the chat template before somebody chats. Requests will hear the same; the log hears it first."""
    try:
        await prompts.prepare()
    except (TextAssetsError, FieldError, ApiError) as error:
        log.error("No chats with tokenizer %s. %s", content_hash, error)
