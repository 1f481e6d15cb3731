"""The serving side of one connection: who the peer is, what it asks, and the chunks that the engine puts out for it."""

import secrets
import time
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from polyfleet.kvcache.portable import BLOCK_TOKENS, KvLayout
from polyfleet.kvcache.travelling import Chunk, chunk_tokens, chunks_on_way
from polyfleet.transfer.channel import Channel, Refused, Stalled
from polyfleet.transfer.frames import (
    MAX_TOKENS,
    Ask,
    BadFrame,
    Blocks,
    End,
    Hello,
    Release,
    Wait,
    Welcome,
    layout_message,
    payload_parts,
    write_arrays,
)
from polyfleet.transfer.inquiry import Inquiry
from polyfleet.transfer.memory import KeptSlots, SharedSlots
from polyfleet.wire.hashing import adapter_salt, prefix_root
from polyfleet.wire.tickets import CHALLENGE_BYTES, computes, proof, proves, ticket_secret

HANDSHAKE_SECONDS = 3.0
SEND_SECONDS = 5.0  # for the peer to take a chunk
ENGINE_SECONDS = 30.0  # until the engine puts out another chunk
TICK_SECONDS = 0.5


def admit(channel: Channel, key: bytes) -> Inquiry:
    """Find out who the peer is and what it asks. Raises Refused, BadFrame, EOFError and OSError."""
    channel.allow(HANDSHAKE_SECONDS)
    hello, _ = channel.expect(Hello)
    if len(hello.challenge) != CHALLENGE_BYTES:
        raise BadFrame("a challenge of a wrong size came")
    secret = ticket_secret(key, hello.ticket[:64], hello.root[:64])
    challenges = hello.challenge + secrets.token_bytes(CHALLENGE_BYTES)
    channel.send(Welcome(challenges[CHALLENGE_BYTES:], proof(secret, "serve", challenges)))
    ask, tokens = channel.expect(Ask, most=4 * MAX_TOKENS)
    salt = adapter_salt(ask.salt, ask.adapter)
    if not proves(ask.proof, secret, "fetch", challenges) or prefix_root(ask.model, salt) != hello.root:
        raise Refused("the ticket is not for this prefix")
    if tokens.nbytes % 4 or not 0 <= ask.first <= tokens.nbytes // 4:
        raise BadFrame("an ask has no token ids")
    if not 0 < ask.grain <= MAX_TOKENS or ask.grain % BLOCK_TOKENS or ask.first % ask.grain:
        raise BadFrame(f"an ask has a grain of {ask.grain} tokens, which is no multiple of {BLOCK_TOKENS}")
    ids = tuple(np.frombuffer(tokens, "<u4").tolist())
    return Inquiry(ask.model, ids, salt, ask.first, ask.grain, computes(hello.ticket), ask.salt, ask.adapter)


class Delivery:
    """Brings what the engine puts out for one inquiry to the peer; `took` hears of each chunk that has left."""

    def __init__(self, channel: Channel, inquiry: Inquiry, kept: KeptSlots, took: Callable[[], None]) -> None:
        self._channel, self._inquiry, self._kept, self._took = channel, inquiry, kept, took
        self._root = prefix_root(inquiry.model, inquiry.salt)
        self._slots: SharedSlots | None = None
        self._stated = False

    def run(self) -> None:
        """Until the end. Raises BadFrame, EOFError and OSError where the peer fails."""
        try:
            while True:
                item = self._next()
                self._channel.allow(SEND_SECONDS)
                if isinstance(item, str):
                    self._channel.send(End(item))
                    self._see_off()
                    return
                if isinstance(item, KvLayout):
                    self._state(item)
                else:
                    self._send(item)
                    self._took()
        finally:
            if self._slots is not None:
                self._kept.give_back(self._root, self._slots)

    def _see_off(self) -> None:
        """A connection that is closed with something unread in it takes the peer what it has not read yet."""
        with suppress(EOFError, ConnectionError, Stalled):
            while self._slots is not None:
                self._released(self._slots)

    def _released(self, slots: SharedSlots) -> None:
        release, _ = self._channel.expect(Release)
        try:
            slots.release(release.slot)
        except ValueError as error:
            raise BadFrame(str(error)) from None

    def _next(self) -> KvLayout | Chunk | str:
        inquiry = self._inquiry
        until = time.monotonic() + ENGINE_SECONDS
        while (item := inquiry.take(TICK_SECONDS)) is None:
            if time.monotonic() > until:
                return "the engine puts nothing out"
            if self._channel.closed_by_peer():
                raise EOFError("the peer has gone")
            if inquiry.computes and self._stated:
                self._channel.allow(SEND_SECONDS)
                self._channel.send(Wait())
        return item

    def _state(self, layout: KvLayout) -> None:
        self._stated = True
        if not self._channel.shared:
            self._channel.send(layout_message(layout))
            return
        grain = self._inquiry.grain
        size, count = chunk_tokens(layout, grain) * layout.token_bytes, chunks_on_way(layout, grain)
        self._slots = self._kept.take(self._root, count, max(1, size))
        self._channel.send(layout_message(layout, count, self._slots.size), descriptor=self._slots.descriptor)

    def _send(self, chunk: Chunk) -> None:
        slots = self._slots
        if slots is None:
            self._channel.send(Blocks(chunk.first, chunk.tokens), payload_parts(chunk.caches))
            return
        while (slot := slots.take()) is None:
            self._released(slots)
        write_arrays(chunk.caches, slots.slot(slot)).release()
        self._channel.send(Blocks(chunk.first, chunk.tokens, slot))


def refuse(channel: Channel, reason: str) -> None:
    """Tell the peer why, if it listens."""
    with suppress(OSError, Stalled):
        channel.allow(TICK_SECONDS)
        channel.send(End(reason))
