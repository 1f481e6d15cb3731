"""TransferRoom: a worker's place on the channel: where peers ask for prefixes, and whence its own are fetched."""

import logging
import os
import secrets
import socket
import threading
from collections import deque
from contextlib import suppress

from polyfleet.kvcache.travelling import PrefixFetch, Wanted
from polyfleet.transfer import memory
from polyfleet.transfer.channel import Channel, Refused
from polyfleet.transfer.fetching import Fetch
from polyfleet.transfer.frames import BadFrame
from polyfleet.transfer.inquiry import Inquiry
from polyfleet.transfer.serving import HANDSHAKE_SECONDS, Delivery, admit, refuse
from polyfleet.transfer.settings import TransferDoor, TransferSettings
from polyfleet.transfer.transports import tune
from polyfleet.wire.auth import split_host_port
from polyfleet.wire.tickets import PrefixSource, new_key

log = logging.getLogger(__name__)
MOST_TRANSFERS = 16  # at a time, each way
MOST_CONNECTIONS = 64  # of peers, those that have not shown a ticket yet included


class TransferRoom:
    """Listens from the start on, on threads. All but these threads' own work is the engine's, which never waits for it.

    `descriptor` can be read from when there is news, until `clear`.
    """

    def __init__(self, settings: TransferSettings) -> None:
        """Raises OSError where it can't listen there."""
        self.key = new_key()
        self.num_fetches = 0  # under way
        self._certificates = settings.certificates
        self._inquiries: deque[Inquiry] = deque()  # new ones
        self._connections = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._serving = threading.BoundedSemaphore(MOST_TRANSFERS)
        self._served: set[Inquiry] = set()
        self._kept = memory.KeptSlots()
        self.descriptor, self._wake = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._wake, False)
        host, port = split_host_port(settings.listen)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._doors = [socket.create_server((host, int(port or 0)), family=family)]
        self.port: int = self._doors[0].getsockname()[1]
        self.local = ""
        if memory.available():
            self.local = f"polyfleet-{secrets.token_hex(16)}"
            self._doors.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            self._doors[1].bind(f"\0{self.local}")
            self._doors[1].listen()
        for door in self._doors:
            threading.Thread(target=self._listen, args=(door,), name="transfer door", daemon=True).start()

    @property
    def door(self) -> TransferDoor:
        """For gateways, by way of the worker."""
        return TransferDoor(self.port, self.local, self.key)

    def fetch(self, source: PrefixSource, wanted: Wanted, seconds: float) -> Fetch | None:
        """Begin to fetch; None while MOST_TRANSFERS are under way."""
        if self.num_fetches >= MOST_TRANSFERS:
            return None
        self.num_fetches += 1
        fetch = Fetch(source, wanted, seconds, self._certificates, self._tell)
        fetch.start()
        return fetch

    def done(self, fetch: PrefixFetch) -> None:
        """A fetch is over, or not wanted any more."""
        assert isinstance(fetch, Fetch)
        fetch.abandon()
        self.num_fetches -= 1

    @property
    def asked(self) -> bool:
        """Whether there are new inquiries."""
        return bool(self._inquiries)

    def new_inquiries(self) -> list[Inquiry]:
        """That have come since the last time."""
        found = []
        with suppress(IndexError):
            while True:
                found.append(self._inquiries.popleft())
        return found

    def clear(self) -> None:
        """The news have been seen."""
        with suppress(BlockingIOError):
            while os.read(self.descriptor, 4096):
                pass

    def close(self) -> None:
        """Listen no more."""
        for door in self._doors:
            with suppress(OSError):
                door.shutdown(socket.SHUT_RDWR)
            door.close()
        self._kept.close()

    def _tell(self) -> None:
        """There is news."""
        with suppress(BlockingIOError, OSError):
            os.write(self._wake, b"\0")

    def _listen(self, door: socket.socket) -> None:
        while True:
            try:
                end, _ = door.accept()
            except OSError:
                return  # closed
            if not self._connections.acquire(blocking=False):
                end.close()
                continue
            threading.Thread(target=self._meet, args=(end,), name="transfer", daemon=True).start()

    def _meet(self, end: socket.socket) -> None:
        """One peer, from its connection to the end."""
        try:
            channel = self._channel(end)
            try:
                self._serve(channel)
            finally:
                channel.close()
        except (BadFrame, Refused) as error:
            log.warning("A peer that asks for a prefix is refused: %s.", error)
        except (EOFError, OSError) as error:
            log.info("A transfer to a peer ended early: %s.", error)
        except Exception:
            log.exception("A transfer to a peer failed.")
        finally:
            end.close()
            self._connections.release()

    def _channel(self, end: socket.socket) -> Channel:
        if end.family == socket.AF_UNIX:
            return Channel(end, shared=True)
        tune(end)
        end.settimeout(HANDSHAKE_SECONDS)
        return Channel(self._certificates.wrap(end, server=True) if self._certificates else end)

    def _serve(self, channel: Channel) -> None:
        try:
            inquiry = admit(channel, self.key)
        except (BadFrame, Refused) as error:
            refuse(channel, str(error))
            raise
        if not self._serving.acquire(blocking=False):
            refuse(channel, "busy")
            return
        try:
            self._served.add(inquiry)
            inquiry.served = self._served
            self._inquiries.append(inquiry)
            self._tell()
            Delivery(channel, inquiry, self._kept, self._tell).run()
        finally:
            inquiry.gone = True
            self._served.discard(inquiry)
            self._serving.release()
            self._tell()
