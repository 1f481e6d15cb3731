"""A connection's streams by number: calls that are open, and those that only their client may still think open."""

from polyfleet.gateway.grpc.http2.call import Call
from polyfleet.gateway.grpc.http2.frames import ConnectionProblem, Problem


class Streams:
    """Of one connection, as RFC 9113, 5.1 has them."""

    def __init__(self, most: int) -> None:
        """`most`: calls at once, and so the calls whose end a client who keeps to that can't have heard of yet."""
        self.most = most
        self.last = 0  # of those that the client began
        self.calls: dict[int, Call] = {}
        self._left: dict[int, None] = {}  # ended here, oldest first: their clients may still send

    @property
    def full(self) -> bool:
        """Whether no call can begin."""
        return len(self.calls) >= self.most

    def begin(self, stream: int, *, end: bool) -> bool:
        """Headers came: whether they begin a stream, which is no call's until `enter`. Raises ConnectionProblem."""
        if not stream % 2:
            raise ConnectionProblem(Problem.PROTOCOL_ERROR, "a call of a wrong number")
        if stream <= self.last:
            return False
        self.last = stream
        self.leave(stream, ended=end)
        return True

    def known(self, stream: int) -> Call | None:
        """For frames of any kind; None: its call has ended. Raises ConnectionProblem where there was none."""
        if stream > self.last or not stream % 2:
            raise ConnectionProblem(Problem.PROTOCOL_ERROR, "a frame of no call")
        return self.calls.get(stream)

    def open(self, stream: int, *, end: bool) -> Call | None:
        """For what only an open stream carries. Raises ConnectionProblem also where the client itself has ended it."""
        if (call := self.known(stream)) is None:
            if stream not in self._left:
                raise ConnectionProblem(Problem.STREAM_CLOSED, "a frame of a call that its client has ended")
            if end:
                del self._left[stream]
        return call

    def enter(self, call: Call) -> None:
        """It is the call of its stream."""
        self._left.pop(call.stream, None)
        self.calls[call.stream] = call

    def leave(self, stream: int, *, ended: bool) -> None:
        """Nothing is answered on it any more; `ended`: neither does the client send."""
        self.calls.pop(stream, None)
        if not ended:
            self._left[stream] = None
            if len(self._left) > self.most:
                del self._left[next(iter(self._left))]

    def given_up(self, stream: int) -> Call | None:
        """The client has reset it, and sends no more."""
        self._left.pop(stream, None)
        if (call := self.known(stream)) is not None:
            call.half_closed = True
        return call
