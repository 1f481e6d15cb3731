"""How much a peer may send that asks for nothing: a flood ends, honest clients behind one proxy go on. Pure."""

from polyfleet.gateway.grpc.http2.frames import ConnectionProblem, Problem

MAX_IDLE_FRAMES = 4096  # that ask for nothing, at once
IDLE_FRAMES_PER_SECOND = 256.0  # of them, for as long as it lasts
RESET_WEIGHT = 4  # of them, for a call that is given up before any answer, or can't be one


class Patience:
    """Of one connection. It comes back with time, and whole when something is sent that was asked for."""

    def __init__(self, now: float) -> None:
        """`now`: in seconds, as below."""
        self._spent = 0.0
        self._seen = now

    def restore(self) -> None:
        """An answer was sent."""
        self._spent = 0.0

    def spend(self, weight: float, now: float) -> None:
        """For frames that ask for nothing. Raises ConnectionProblem when there are too many."""
        self._spent = max(0.0, self._spent - IDLE_FRAMES_PER_SECOND * (now - self._seen)) + weight
        self._seen = now
        if self._spent > MAX_IDLE_FRAMES:
            raise ConnectionProblem(Problem.ENHANCE_YOUR_CALM, "too many frames that ask for nothing")
