"""Peers that hold a ticket and keep no rule: well-formed frames in any order and of any sizes, silence, and replays."""

import logging
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.transfers import GRAIN, LAYOUT, WAIT_SECONDS, fetched, played, ticket, wanted_of

from polyfleet.kvcache.travelling import FAILURES, Chunk
from polyfleet.transfer import fetching, serving
from polyfleet.transfer.channel import Channel
from polyfleet.transfer.frames import (
    Ask,
    Blocks,
    End,
    Hello,
    Layout,
    Message,
    Release,
    Wait,
    Welcome,
    layout_message,
)
from polyfleet.transfer.room import MOST_CONNECTIONS, TransferRoom
from polyfleet.transfer.serving import admit
from polyfleet.transfer.settings import TransferSettings
from polyfleet.transfer.transports import connect
from polyfleet.wire.hashing import prefix_root
from polyfleet.wire.tickets import PrefixSource, TransferOffer, new_key, proof

TOKENS = 4 * GRAIN
INTEGERS = st.one_of(st.integers(-2, 3), st.integers(-(2**63), 2**63 - 1), st.sampled_from([GRAIN, TOKENS, 2**31]))
BYTES = st.binary(max_size=40)
GOOD = layout_message(LAYOUT)
CACHES = st.lists(st.tuples(INTEGERS, INTEGERS, st.booleans()), max_size=3)
MESSAGES = st.one_of(
    st.builds(Hello, BYTES, BYTES, BYTES),
    st.builds(Welcome, BYTES, BYTES),
    st.builds(Ask, BYTES, st.text(max_size=9), st.text(max_size=9), BYTES, INTEGERS, INTEGERS),
    st.builds(Layout, st.just("model"), st.sampled_from(["float16", "int8", "float64", ""]), CACHES),
    st.builds(lambda slots, size: Layout(GOOD.model, GOOD.dtype, GOOD.caches, slots, size), INTEGERS, INTEGERS),
    st.just(GOOD),
    st.builds(Blocks, INTEGERS, INTEGERS, INTEGERS),
    st.just(Wait()),
    st.builds(Release, INTEGERS),
    st.builds(End, st.sampled_from(["", "busy"])),
)


class Giver(NamedTuple):
    """A room that gives, and where it is."""

    room: TransferRoom
    offer: TransferOffer


def until_idle(room: TransferRoom) -> None:
    """Nobody is served there, or being met."""
    while room._served or room._connections._value < MOST_CONNECTIONS:
        threading.Event().wait(0.01)


Sent = tuple[Message, int]  # and bytes of a payload


def chunk(first: int, tokens: int) -> Sent:
    """With just the payload that it says."""
    return Blocks(first, tokens), max(0, tokens) * LAYOUT.token_bytes


SENT = st.one_of(
    st.tuples(MESSAGES, st.sampled_from([0, 1, GRAIN * LAYOUT.token_bytes])),
    st.builds(chunk, st.sampled_from([0, GRAIN, TOKENS]), st.sampled_from([-GRAIN, 0, 1, GRAIN, 2 * GRAIN, 9 * GRAIN])),
)


@contextmanager
def scripted(answer: Callable[[Channel], None]) -> Iterator[PrefixSource]:
    """One that proves that it knows the ticket of whoever asks, and then does as it likes; its ticket."""
    listener, key = socket.create_server(("127.0.0.1", 0)), new_key()

    def serve() -> None:
        channel = Channel(listener.accept()[0])
        try:
            admit(channel, key)
            channel.allow(WAIT_SECONDS)
            answer(channel)
        except OSError:
            pass  # the other side has had enough
        finally:
            channel.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield ticket(TransferOffer(f"127.0.0.1:{listener.getsockname()[1]}", "", key))
    finally:
        thread.join(WAIT_SECONDS)
        listener.close()


@pytest.fixture(scope="module")
def room() -> Iterator[TransferRoom]:
    mine = TransferRoom(TransferSettings("127.0.0.1:0"))
    yield mine
    mine.close()


def keeps_the_rules(chunks: Sequence[Chunk]) -> bool:
    """Each follows the one before, holds something, and none goes beyond what was wanted."""
    firsts = [sum(each.tokens for each in chunks[:at]) for at in range(len(chunks))]
    whole = all(each.tokens > 0 and each.tokens % GRAIN == 0 for each in chunks)
    return whole and firsts == [each.first for each in chunks] and sum(each.tokens for each in chunks) <= TOKENS


@settings(max_examples=40, deadline=None)
@example(good=True, sent=[chunk(0, 0), chunk(0, TOKENS)])
@example(good=True, sent=[chunk(0, TOKENS), chunk(TOKENS, GRAIN)])
@example(good=True, sent=[chunk(0, 9 * GRAIN)])
@given(good=st.booleans(), sent=st.lists(SENT, max_size=5))
def test_whatever_a_giver_sends_is_a_reason_to_compute(
    good: bool, sent: list[Sent], room: TransferRoom, errors: list[str]
) -> None:
    def answer(channel: Channel) -> None:
        for message, size in [(GOOD, 0)] * good + sent:
            channel.send(message, [bytes(size)] if size else [])

    with scripted(answer) as source:
        chunks, reason = fetched(room, source, wanted_of(TOKENS))
    assert reason in ("", *FAILURES)
    assert keeps_the_rules(chunks)
    assert not errors


@settings(max_examples=40, deadline=None)
@example(proves=True, sent=[(Release(0), 0)])
@given(proves=st.booleans(), sent=st.lists(SENT, max_size=4))
def test_whatever_a_taker_sends_costs_the_giver_nothing(
    proves: bool, sent: list[Sent], giver: Giver, room: TransferRoom, errors: list[str]
) -> None:
    channel = connect(ticket(giver.offer), WAIT_SECONDS)
    try:
        channel.allow(WAIT_SECONDS)
        if proves:
            ask(channel, ticket(giver.offer))
        for message, size in sent:
            channel.send(message, [bytes(size)] if size else [])
    except OSError:
        pass  # it has had enough
    finally:
        channel.close()
    until_idle(giver.room)
    chunks, reason = fetched(room, ticket(giver.offer), wanted_of(TOKENS))
    assert (sum(each.tokens for each in chunks), reason) == (TOKENS, "")
    assert not errors


def ask(channel: Channel, source: PrefixSource, grain: int = GRAIN) -> None:
    """As a fetching side does that holds the ticket."""
    root, challenge = prefix_root("model", b"tenant"), b"c" * 16
    channel.send(Hello(source.ticket, root, challenge))
    welcome, _ = channel.expect(Welcome)
    mine = proof(source.secret, "fetch", challenge + welcome.challenge)
    channel.send(Ask(mine, "model", "", b"tenant", 0, grain), [bytes(4 * TOKENS)])


@pytest.fixture(scope="module")
def giver() -> Iterator[Giver]:
    with played(TOKENS) as (there, _, offer):
        yield Giver(there, offer)


@pytest.fixture(scope="module")
def errors() -> Iterator[list[str]]:
    """What was logged as nobody's fault but ours."""
    found: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: found.append(handler.format(record))  # type: ignore[method-assign]
    logger = logging.getLogger("polyfleet.transfer")
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)


def silent(channel: Channel) -> None:
    """Until the other side has gone."""
    while not channel.closed_by_peer():
        threading.Event().wait(0.01)


def after_layout(channel: Channel) -> None:
    channel.send(GOOD)
    silent(channel)


def in_a_frame(channel: Channel) -> None:
    channel.send(GOOD)
    channel._socket.sendall(b"PFT2\x05")
    silent(channel)


def in_a_payload(channel: Channel) -> None:
    channel.send(GOOD)
    size = GRAIN * LAYOUT.token_bytes
    channel._socket.sendall(b"PFT2\x05\0\0\0" + size.to_bytes(8, "little") + bytes(size // 2))
    silent(channel)


def before_the_end(channel: Channel) -> None:
    channel.send(GOOD)
    channel.send(Blocks(0, GRAIN), [bytes(GRAIN * LAYOUT.token_bytes)])
    silent(channel)


@pytest.mark.parametrize(
    ("stall", "tokens"),
    [(silent, 0), (after_layout, 0), (in_a_frame, 0), (in_a_payload, 0), (before_the_end, GRAIN)],
)
def test_a_giver_that_stalls_anywhere_is_left(
    stall: Callable[[Channel], None], tokens: int, room: TransferRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "STALL_SECONDS", 0.2)
    with scripted(stall) as source:
        chunks, reason = fetched(room, source, wanted_of(TOKENS))
    assert (sum(each.tokens for each in chunks), reason) == (tokens, "stalled")


def test_a_giver_that_never_answers_a_hello_is_left(room: TransferRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "STALL_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        source = ticket(TransferOffer(f"127.0.0.1:{listener.getsockname()[1]}", "", new_key()))
        assert fetched(room, source, wanted_of(TOKENS)) == ([], "stalled")


def says_nothing(channel: Channel, source: PrefixSource) -> None:
    pass


def says_half_a_hello(channel: Channel, source: PrefixSource) -> None:
    channel._socket.sendall(b"PFT2\x30\0\0\0")


def asks_for_nothing(channel: Channel, source: PrefixSource) -> None:
    channel.send(Hello(source.ticket, prefix_root("model", b"tenant"), b"c" * 16))


def takes_nothing(channel: Channel, source: PrefixSource) -> None:
    ask(channel, source)


@pytest.mark.parametrize("stall", [says_nothing, says_half_a_hello, asks_for_nothing, takes_nothing])
def test_a_taker_that_stalls_anywhere_is_cut_off(
    stall: Callable[[Channel, PrefixSource], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "HANDSHAKE_SECONDS", 0.2)
    monkeypatch.setattr(serving, "SEND_SECONDS", 0.2)
    with played(4096 * GRAIN, step=64 * GRAIN) as (there, _, offer):
        channel = connect(ticket(offer), WAIT_SECONDS)
        channel.allow(WAIT_SECONDS)
        stall(channel, ticket(offer))
        until_idle(there)
        channel.close()


def test_what_was_recorded_of_a_transfer_opens_none(room: TransferRoom, giver: Giver) -> None:
    said: list[tuple[Message, list[bytes]]] = []
    with pytest.MonkeyPatch.context() as patch:
        send = Channel.send

        def recorded(channel: Channel, message: Message, payload: Sequence[bytes] = (), descriptor: int = -1) -> None:
            if isinstance(message, Hello | Ask):
                said.append((message, list(payload)))
            send(channel, message, payload, descriptor)

        patch.setattr(Channel, "send", recorded)
        assert fetched(room, replace(ticket(giver.offer), local=""), wanted_of(TOKENS))[1] == ""
    (hello, _), (asked, payload) = said
    channel = connect(replace(ticket(giver.offer), local=""), WAIT_SECONDS)
    channel.allow(WAIT_SECONDS)
    channel.send(hello)
    channel.expect(Welcome)
    channel.send(asked, payload)
    assert channel.receive()[0] == End("the ticket is not for this prefix")
    channel.close()
