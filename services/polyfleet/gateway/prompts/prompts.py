"""From the prompt of a request to the ids that its model computes, made in processes beside the gateway.

But for short texts, which none of these has to be asked for.
"""

import asyncio
import time
from array import array
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from polyfleet.gateway.config import Limits
from polyfleet.gateway.errors import DeadlineExceeded
from polyfleet.gateway.fetching.fetcher import NO_HOSTS
from polyfleet.gateway.prompts.text_process import TextProcess
from polyfleet.process.within import Within
from polyfleet.text.grammar import Calls
from polyfleet.text.process import (
    EncodeChat,
    Encoded,
    EncodeDocument,
    EncodeText,
    Job,
    Made,
    MakeGrammar,
    PrepareChat,
    PreparedImage,
    PrepareImage,
)
from polyfleet.text.short_texts import ShortTexts
from polyfleet.wire.images import MAX_PIXEL_BYTES, SequenceImage
from polyfleet.wire.limits import FieldError
from polyfleet.wire.requests import Chat, Message
from polyfleet.wire.structure import Structure

LONG_CHARACTERS = 100_000  # beyond, encoding would hold up other requests: a second process does it
MESSAGE_CHARACTERS = 64  # what one message weighs beside its content
QUICK_IDLE_SECONDS = 600.0
LONG_IDLE_SECONDS = 20.0
JOB_SECONDS = 5.0
IMAGE_BYTES = 512 * 1024 * 1024  # of memory that an image may take while it is prepared
SECONDS_PER_MILLION = 15.0  # more, for so many characters


Fetch = Callable[[str], Coroutine[Any, Any, bytes]]
Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True)
class Prompt:
    """`token_ids` is empty where there are more than the model's context holds: `num_tokens` tells how many.

    `end_token_ids` end the model's turn in a chat; `pieces`, where asked for, are the ids as the vocabulary has them.
    `thinking`: it ends within the model's thoughts; `segment_start`: where a pair's document begins; `images`: those
    that its tokens stand for.
    """

    token_ids: tuple[int, ...]
    num_tokens: int
    end_token_ids: tuple[int, ...] = ()
    pieces: tuple[str, ...] = ()
    thinking: bool = False
    segment_start: int = 0
    images: tuple[SequenceImage, ...] = ()


class Prompts:
    """Makes the prompts of one model. Long ones wait for each other, and no other model's or short one for them.

    Nor does a prompt wait for grammars of answers or for images, each of which may take as long as a job may.
    Its methods raise FieldError on `text` or `messages`, DeadlineExceeded, and what TextProcess.run raises.
    """

    def __init__(
        self, document: bytes, limits: Limits, fetch: Fetch | None = None, *, open_contents: bool = False
    ) -> None:
        """`fetch`: images by their URLs; `open_contents`: what contents of messages spell may become control tokens."""
        self._fetch = fetch
        self._document = document
        self._short: ShortTexts | None = None
        max_waiting = limits.max_concurrent + limits.max_queued
        self._quick = TextProcess(document, max_waiting, QUICK_IDLE_SECONDS)
        self._long = TextProcess(document, max_waiting, LONG_IDLE_SECONDS)
        self._grammars = TextProcess(document, max_waiting, QUICK_IDLE_SECONDS)
        self._images = TextProcess(document, max_waiting, LONG_IDLE_SECONDS, IMAGE_BYTES)
        self._processes = (self._quick, self._long, self._grammars, self._images)
        self._open_contents = open_contents

    async def prepare(self) -> None:
        """Find out which texts are short; start, and try the chat template."""
        self._short = await asyncio.to_thread(ShortTexts, self._document)
        await self._quick.run(PrepareChat(JOB_SECONDS))

    async def of_text(
        self, text: str, max_tokens: int, seconds: float, *, add_special_tokens: bool = True, pieces: bool = False
    ) -> Prompt:
        """Of raw text, of which at most `max_tokens` are wanted (0: any number), within so many seconds."""
        if self._short is not None and not pieces and self._short.takes(text):
            ids = self._short.encode(text, add_special_tokens, max_tokens)
            return Prompt(tuple(ids) if not max_tokens or len(ids) <= max_tokens else (), len(ids))
        job = EncodeText(_seconds(len(text)), text, add_special_tokens, max_tokens, pieces)
        return await self._run(job, len(text), seconds)

    async def of_chat(self, chat: Chat, max_tokens: int, seconds: float, *, pieces: bool = False) -> Prompt:
        """Of a chat, rendered with the model's template; the numbers as for `of_text`."""
        weight = sum(map(_weight, chat.messages)) + sum(map(len, chat.tools)) + len(chat.arguments)
        deadline = time.monotonic() + seconds
        prepared = await self._prepare(chat, deadline)
        grids, images = tuple(each.grid for each in prepared), tuple(each.image for each in prepared)
        chat = chat.without_data if prepared else chat
        job = EncodeChat(_seconds(weight), chat, grids, self._open_contents, max_tokens, pieces)
        return replace(await self._run(job, weight, deadline - time.monotonic()), images=images)

    async def _prepare(self, chat: Chat, deadline: float) -> list[PreparedImage]:
        """All images of a chat, one by one: a request takes no more memory than its largest one."""
        prepared: list[PreparedImage] = []
        for path, image in chat.images:
            data = await self._fetched(image.url, path, deadline) if image.url else image.data
            try:
                answer = await _within(deadline - time.monotonic(), self._images.run(PrepareImage(JOB_SECONDS, data)))
            except FieldError as error:
                raise error.on(path) from None
            assert isinstance(answer, PreparedImage)
            prepared.append(answer)
            if sum(len(each.image.pixels) for each in prepared) > MAX_PIXEL_BYTES:
                raise FieldError("messages", f"show images of over {MAX_PIXEL_BYTES >> 20} MiB of pixels")
        return prepared

    async def _fetched(self, url: str, path: str, deadline: float) -> bytes:
        try:
            if self._fetch is None:
                raise FieldError("", NO_HOSTS)
            return await _within(deadline - time.monotonic(), self._fetch(url))
        except FieldError as error:
            raise error.on(f"{path}.image_url") from None

    async def of_document(
        self, document: str, max_tokens: int, seconds: float, *, max_text: int = 0, query: str = ""
    ) -> Prompt:
        """Of a document, with a query where one is given, cut as PromptText.encode_document says."""
        weight = len(query) + len(document)
        return await self._run(EncodeDocument(_seconds(weight), document, max_tokens, max_text, query), weight, seconds)

    async def grammar(
        self,
        structure: Structure | None,
        calls: Calls | None,
        closing_of_thoughts: str,
        special: tuple[tuple[str, int], ...],
        seconds: float,
        *,
        channels: bool = False,
    ) -> str:
        """Of an answer, see `polyfleet.text.grammar`."""
        job = MakeGrammar(JOB_SECONDS, structure, calls, closing_of_thoughts, special, channels)
        answer = await _within(seconds, self._grammars.run(job))
        assert isinstance(answer, Made)
        return answer.grammar

    async def _run(self, job: Job, weight: int, seconds: float) -> Prompt:
        process = self._long if weight > LONG_CHARACTERS else self._quick
        answer = await _within(seconds, process.run(job))
        assert isinstance(answer, Encoded)
        more = answer.end_token_ids, answer.pieces, answer.thinking, answer.segment_start
        return Prompt(tuple(array("I", answer.token_ids)), answer.num_tokens, *more)

    @property
    def pids(self) -> tuple[int, ...]:
        """Of its processes, as far as they run now."""
        return tuple(each.pid for each in self._processes if each.pid is not None)

    async def close(self) -> None:
        """End its processes."""
        await asyncio.gather(*(each.close() for each in self._processes))


async def _within(seconds: float, work: Coroutine[Any, Any, Outcome]) -> Outcome:
    try:
        with Within(seconds):
            return await work
    except asyncio.TimeoutError:
        raise DeadlineExceeded("The request's deadline has passed.") from None


def _weight(message: Message) -> int:
    texts = [*message.texts, message.reasoning, *(call.arguments for call in message.tool_calls)]
    return MESSAGE_CHARACTERS + sum(len(text) + MESSAGE_CHARACTERS for text in texts if text)


def _seconds(num_characters: int) -> float:
    return round(JOB_SECONDS + SECONDS_PER_MILLION * num_characters / 1e6, 1)
