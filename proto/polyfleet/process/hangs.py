"""Whether a process hangs, by looks at it in a row, about a second apart. Pure, but for the question itself."""

from contextlib import closing
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

from polyfleet.process.signals import is_stopped

ASK_SECONDS = 5.0
STOPPED_LOOKS = 3  # a second apart: whoever it serves waits
UNANSWERED_LOOKS = 6  # each of which has waited for ASK_SECONDS: a busy one answers within that


class Looks:
    """What looks at one process have found."""

    def __init__(self) -> None:
        self._stopped = self._unanswered = 0  # in a row

    def at(self, pid: int) -> bool:
        """Look whether it is stopped (SIGSTOP); True when it is."""
        self._stopped = self._stopped + 1 if is_stopped(pid) else 0
        return self._stopped > 0

    def asked(self, seconds: float) -> None:
        """It was asked, and so long an answer waited for, be it a refusal: one that is starting hangs not."""
        self._unanswered = self._unanswered + 1 if seconds >= ASK_SECONDS else 0

    @property
    def hung(self) -> bool:
        """Whether it has been stopped for the last looks, or has not answered for long."""
        return self._stopped >= STOPPED_LOOKS or self._unanswered >= UNANSWERED_LOOKS


def fetched(url: str) -> tuple[int, str]:
    """Status and text at an http:// URL, whatever the status. Raises OSError when nobody answers in ASK_SECONDS."""
    parts = urlsplit(url)
    with closing(HTTPConnection(parts.netloc, timeout=ASK_SECONDS)) as connection:
        try:
            connection.request("GET", parts.path or "/")
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except HTTPException as error:
            raise ConnectionError(f"{url} is answered with nonsense: {error}") from None
