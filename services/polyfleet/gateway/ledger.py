"""The one account of the requests that this gateway holds: admitted = finished + failed + cancelled + running."""

from dataclasses import dataclass
from enum import Enum, unique


@unique
class Outcome(str, Enum):
    """How a request ended: all of it, with a status that says why, or because its client left."""

    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


class LedgerError(RuntimeError):
    """The account does not balance: a fault in the gateway."""


@dataclass(slots=True)
class Ledger:
    """Counts of requests since the start."""

    admitted: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    running: int = 0

    def admit(self) -> None:
        """A request was accepted."""
        self.admitted += 1
        self.running += 1

    def end(self, outcome: Outcome) -> None:
        """An admitted request ended."""
        self.running -= 1
        if outcome is Outcome.FINISHED:
            self.finished += 1
        elif outcome is Outcome.FAILED:
            self.failed += 1
        else:
            self.cancelled += 1

    def check(self) -> None:
        """Raise LedgerError unless the account balances."""
        if self.running < 0 or self.admitted != self.finished + self.failed + self.cancelled + self.running:
            raise LedgerError(f"The ledger does not balance: {self}.")
