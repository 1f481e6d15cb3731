"""What a session tells of each sequence on it."""

from typing import Protocol

from polyfleet.wire.answers import SequenceUpdate


class SequenceSink(Protocol):
    """A sequence that runs on a worker, as its session sees it. Its methods neither block nor raise."""

    def updated(self, update: SequenceUpdate) -> None:
        """News from the worker; the last one carries finish_reason or error."""
        ...

    def lost(self, reason: str) -> None:
        """The worker can't be heard any more; no news will follow."""
        ...
