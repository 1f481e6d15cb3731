"""When the tokens of a choice arrived at the gateway, whenever their client takes them."""

import time


class TokenTimes:
    """Of one choice. Seconds are on the monotonic clock."""

    __slots__ = ("_last", "_num_gaps", "_seconds", "first")

    def __init__(self) -> None:
        self.first: float | None = None  # when the first token arrived
        self._last: float | None = None
        self._seconds = 0.0  # between tokens,
        self._num_gaps = 0  # so many times

    def arrived(self, num_tokens: int) -> None:
        """So many tokens more have come, just now."""
        if not num_tokens:
            return
        now = time.monotonic()
        if self._last is None:
            self._num_gaps += num_tokens - 1
        else:
            self._seconds += now - self._last
            self._num_gaps += num_tokens
        self._last = now
        if self.first is None:
            self.first = now

    def paused(self) -> None:
        """It is the client who keeps the next token waiting: that gap does not count."""
        self._last = None

    @property
    def per_token(self) -> float | None:
        """Mean seconds between two tokens; None with fewer than two."""
        return self._seconds / self._num_gaps if self._num_gaps else None
