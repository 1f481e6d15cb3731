"""A port's connections, handed to the processes that serve them, each to whoever has the fewest.

Listening at one port together they would get them by chance (SO_REUSEPORT, by a hash of addresses: of 16 connections
four processes had 7, 4, 4 and 1), and a process that ends takes those along that wait for it.
"""

import asyncio
import socket
import time
from collections import deque
from contextlib import suppress

from polyfleet.gateway.ports.handed import CLOSED, GIVEN, LEFT, TAKEN
from polyfleet.gateway.ports.taking import Taking

LATE_SECONDS = 0.5  # whoever has not taken what it was given so long ago gets more only where nobody else can
HEARD_AT_ONCE = 4096  # bytes


class Hand:
    """One process at one port. `theirs` is its end of the channel."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.ready = False  # it gets connections
        self.open = 0
        self.turn = 0  # when it got its last one, among all
        self.untaken = deque[tuple[float, socket.socket]]()  # since when; given to others when it ends

    def late(self, now: float) -> bool:
        """Whether something seems to hold it up."""
        return bool(self.untaken) and now - self.untaken[0][0] > LATE_SECONDS


class Handing:
    """Of one listening socket, which it closes in the end."""

    def __init__(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        self.port: int = listener.getsockname()[1]
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._hands: list[Hand] = []
        self._waiting = deque[socket.socket]()
        self._turn = 0
        self._taking = Taking(listener, lambda connection, _: self._hand(connection))

    def join(self) -> Hand:
        """One more process, which gets connections when it is `ready`."""
        hand = Hand()
        self._hands.append(hand)
        self._loop.add_reader(hand.ours, self._hear, hand)
        return hand

    def ready(self, hand: Hand) -> None:
        """It can serve now."""
        hand.ready = True
        self._go_on()

    def leave(self, hand: Hand) -> None:
        """It gets no more, and takes those that it was given."""
        hand.ready = False

    def close(self) -> None:
        """Hand out those that wait, and take no more."""
        self._taking.finish()
        self._listener.close()
        while self._waiting:  # nobody is there
            self._waiting.popleft().close()

    def _go_on(self) -> None:
        """Hand out those that nobody could get, then those that come."""
        for _ in range(len(self._waiting)):
            self._hand(self._waiting.popleft())
        if not self._waiting and self._listener.fileno() >= 0 and any(each.ready for each in self._hands):
            self._taking.go_on()

    def _hand(self, connection: socket.socket) -> None:
        now = time.monotonic()
        ready = [each for each in self._hands if each.ready]
        for hand in sorted(ready, key=lambda each: (each.late(now), each.open, each.turn)):
            with suppress(OSError):  # its channel is full, or it has just ended
                socket.send_fds(hand.ours, [GIVEN], [connection.fileno()])
                self._turn += 1
                hand.turn = self._turn
                hand.open += 1
                hand.untaken.append((now, connection))
                return
        self._waiting.append(connection)
        self._taking.pause()

    def _hear(self, hand: Hand) -> None:
        try:
            said = hand.ours.recv(HEARD_AT_ONCE)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        hand.open -= said.count(CLOSED)
        for _ in range(said.count(TAKEN)):
            hand.untaken.popleft()[1].close()
        if LEFT in said or not said:
            hand.ready = False
            self._waiting.extend(connection for _, connection in hand.untaken)
            hand.untaken.clear()
        if not said:
            self._hands.remove(hand)
            self._loop.remove_reader(hand.ours)
            hand.ours.close()
        if self._waiting:
            self._go_on()
