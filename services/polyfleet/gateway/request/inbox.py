"""Where a request's sequences leave their news until its client reads it: at most one parcel per choice.

News that arrive while the client is busy are merged, so that a slow client costs memory only up to a bound (its
sequences are parked beyond it) and a fast one costs one wake-up per step.
"""

import asyncio
from dataclasses import dataclass, field

from polyfleet.gateway.errors import ApiError
from polyfleet.wire.answers import FinishReason, SampledToken


@dataclass(slots=True)
class Parcel:
    """What one choice has for its client. `worker_id` is set when it comes from another worker than before."""

    choice: int
    worker_id: str = ""
    tokens: list[SampledToken] = field(default_factory=list)
    prompt_logprobs: list[SampledToken] = field(default_factory=list)  # of its tokens but the first; without their ids
    finish_reason: FinishReason | None = None
    cached_tokens: int = 0
    queue_seconds: float = 0.0  # for a worker and in its queue, up to the first step
    embedding: tuple[float, ...] = ()


class Inbox:
    """Written by sequences, read by one request's task. Lives in one event loop."""

    def __init__(self) -> None:
        self.num_tokens = 0  # not taken yet
        self.parked = False  # whether a sequence waits for the client to take what there is
        self._parcels: dict[int, Parcel] = {}
        self._error: ApiError | None = None
        self._reader: asyncio.Future[None] | None = None  # waits for news

    def parcel(self, choice: int) -> Parcel:
        """The choice's open parcel, for its sequence to add to; the client is woken."""
        parcel = self._parcels.get(choice)
        if parcel is None:
            parcel = self._parcels[choice] = Parcel(choice)
            self._wake()
        return parcel

    def fail(self, error: ApiError) -> None:
        """End the request with this error, behind what has come already. Only the first one counts."""
        self._error = self._error or error
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def take(self) -> list[Parcel]:
        """Wait for news, then take all: one parcel per choice that has any, in the order they were opened.

        Raises the error that the request was failed with once everything before it was taken.
        """
        if not self._parcels and self._error is None:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        if not self._parcels and self._error is not None:
            raise self._error
        parcels = list(self._parcels.values())
        self._parcels.clear()
        self.num_tokens = 0
        return parcels
