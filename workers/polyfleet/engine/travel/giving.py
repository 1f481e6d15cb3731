"""Giving: the engine's part in giving prefixes to other workers, those included that it computes for them.

A prompt that is computed for another worker is a sequence like any other, whose one token nobody gets: its blocks leave
as the steps that filled them are over, while the rest is computed. It ends when nobody asks for it any more.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from polyfleet.engine.executor import DeviceTimeout
from polyfleet.engine.step.sequence import Sequence, SequenceState
from polyfleet.engine.travel.exchange import Exchange
from polyfleet.kvcache.travelling import Leaving, PrefixInquiry, PrefixRoom, chunk_tokens
from polyfleet.wire.answers import SequenceUpdate
from polyfleet.wire.limits import FieldError
from polyfleet.wire.requests import SequenceRequest

log = logging.getLogger(__name__)
_UNDER_WAY = (SequenceState.WAITING, SequenceState.RUNNING)


@dataclass(slots=True)
class _Gift:
    """What a peer asks for, and the sequence that computes it, if any does."""

    inquiry: PrefixInquiry
    hashes: list[bytes]
    sequence: Sequence | None

    @property
    def grows(self) -> bool:
        """Whether more is being computed."""
        return self.sequence is not None and self.sequence.state in _UNDER_WAY

    @property
    def problem(self) -> str:
        """Why not all was computed that should have been."""
        failed = self.sequence is not None and self.sequence.state is not SequenceState.FINISHED
        return "this worker could not compute it" if failed else ""


class Giving:
    """Call `advance` before each step, and `kept` on what it brought. Not thread-safe."""

    def __init__(
        self,
        exchange: Exchange,
        room: PrefixRoom,
        compute: Callable[[SequenceRequest], Sequence],
        cancel: Callable[[str], bool],
        clock: Callable[[], float],
    ) -> None:
        """`compute` queues a sequence, or raises FieldError; `cancel` ends one that may have ended."""
        self.given_tokens = self.computed_prompts = 0
        self._exchange, self._room, self._compute, self._cancel, self._clock = exchange, room, compute, cancel, clock
        self._gifts: list[_Gift] = []
        self._names: set[str] = set()  # of sequences under way for peers
        self._serial = count(1)

    @property
    def has_work(self) -> bool:
        """Whether `advance` would do anything now."""
        return self._room.asked or any(each.inquiry.room or each.inquiry.gone for each in self._gifts)

    def advance(self, until: float) -> None:
        """Meet new inquiries, and put out what each peer has room for: a chunk for each, and more until then."""
        for inquiry in self._room.new_inquiries():
            self._meet(inquiry)
        self._gifts = [each for each in self._gifts if self._give(each, until)]

    def kept(self, updates: list[SequenceUpdate]) -> list[SequenceUpdate]:
        """A step's news without those of peers' prompts."""
        if not self._names:
            return updates
        theirs = [each for each in updates if each.sequence_id in self._names]
        for each in theirs:
            if each.error:
                log.warning("A prompt could not be computed for another worker: %s", each.error)
            if each.error or each.finish_reason is not None:
                self._names.discard(each.sequence_id)
        return [each for each in updates if each not in theirs] if theirs else updates

    def _meet(self, inquiry: PrefixInquiry) -> None:
        layout = self._exchange.layout
        if inquiry.model != layout.model:
            inquiry.end("this worker has another model, or another revision of it")
            return
        hashes = self._exchange.chain(inquiry.token_ids, inquiry.salt)
        try:
            sequence = self._begin(inquiry, hashes)
        except FieldError as error:
            inquiry.end(f"this worker can't compute it: {error}")
            return
        inquiry.state(layout)
        self._gifts.append(_Gift(inquiry, hashes, sequence))

    def _begin(self, inquiry: PrefixInquiry, hashes: list[bytes]) -> Sequence | None:
        """Have the prompt computed, where it is to be and is not all there. Raises FieldError."""
        missing = len(inquiry.token_ids) - self._exchange.known_tokens(hashes)
        if not inquiry.computes or missing < inquiry.grain:
            return None
        if not self._exchange.keeps:
            raise FieldError("prefix_cache", "must be on")
        name = f"for another worker/{next(self._serial)}"
        prompt, salt, adapter = inquiry.token_ids, inquiry.cache_salt, inquiry.adapter
        sequence = self._compute(SequenceRequest(name, prompt, max_tokens=1, cache_salt=salt, adapter=adapter))
        self._names.add(name)
        self.computed_prompts += 1
        return sequence

    def _give(self, gift: _Gift, until: float) -> bool:
        """The next chunks, if there is room and time for them; False when that was all, or nobody wants it any more."""
        inquiry, grain = gift.inquiry, gift.inquiry.grain
        most = chunk_tokens(self._exchange.layout, grain)
        while inquiry.room and not inquiry.gone:
            first = inquiry.first
            count = min((self._exchange.known_tokens(gift.hashes) - first) // grain * grain, most)
            if count <= 0 and gift.grows:
                return True
            if count <= 0:
                inquiry.end(gift.problem)
                return False
            try:
                arrived = self._exchange.begin_read(gift.hashes, first, first + count)
                inquiry.give(Leaving(first, count, count * self._exchange.layout.token_bytes, arrived))
            except DeviceTimeout:
                raise
            except Exception:
                log.exception("A prefix that another worker asks for could not be read.")
                inquiry.end("this worker can't read it")
                self._drop(gift)
                return False
            self.given_tokens += count
            if self._clock() >= until:
                break
        if inquiry.gone:
            self._drop(gift)
        return not inquiry.gone

    def _drop(self, gift: _Gift) -> None:
        """Compute no more of it."""
        if gift.sequence is not None and gift.grows:
            self._cancel(gift.sequence.sequence_id)
            self._names.discard(gift.sequence.sequence_id)
