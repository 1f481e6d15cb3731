"""How much the client of a connection may send, over all its calls together. Pure."""

from polyfleet.gateway.grpc.http2.frames import DEFAULT_WINDOW, ConnectionProblem, Problem

CONNECTION_WINDOW = 1024 * 1024


class Inflow:
    """In bytes. A stranger's are given back once nobody holds them: what he can have held is the window.

    Whom a call was let in for gets them back as they come, so that no call waits for another's handler.
    """

    def __init__(self) -> None:
        self._size = self._allowed = DEFAULT_WINDOW
        self._owed = 0
        self._trusted = False

    def came(self, size: int) -> None:
        """Of any call, padding too. Raises ConnectionProblem where it is more than was allowed."""
        self._allowed -= size
        if self._allowed < 0:
            raise ConnectionProblem(Problem.FLOW_CONTROL_ERROR, "more came than was allowed")
        if self._trusted:
            self._owed += size

    def took(self, size: int) -> None:
        """So many of them are held no more."""
        if not self._trusted:
            self._owed += size

    def trust(self) -> None:
        """A call was let in."""
        self._trusted, self._size = True, CONNECTION_WINDOW
        self._owed = CONNECTION_WINDOW - self._allowed

    def grant(self) -> int:
        """What is to be given back now; 0 while that is little."""
        if (owed := self._owed) < self._size // 2:
            return 0
        self._allowed, self._owed = self._allowed + owed, 0
        return owed
