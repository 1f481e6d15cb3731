"""Whether a worker still reads what its gateway sends: a connection may be cut one way, and its heartbeats go on."""

from polyfleet.v1 import worker_pb2


class Delivery:
    """The commands of one connection. `tick` now and then; `silence` is how often nothing more of them was read."""

    def __init__(self) -> None:
        self.silence = 0
        self._num_sent = 0
        self._num_read: int | None = None  # None: the worker is of a version that does not tell

    def sent(self) -> None:
        """One more."""
        self._num_sent += 1

    def heard(self, event: worker_pb2.SessionEvent) -> None:
        """What the worker says that it has read."""
        if event.HasField("read_commands") and event.read_commands != self._num_read:
            self._num_read, self.silence = event.read_commands, 0

    def tick(self) -> None:
        """Time passes."""
        waits = self._num_read is not None and self._num_read < self._num_sent
        self.silence = self.silence + 1 if waits else 0
