"""What waits in the queue in front of the fleet: a request's turn, and its sequences that want workers."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from polyfleet.gateway.config import Objectives
from polyfleet.gateway.errors import ApiError
from polyfleet.gateway.fleet.session import Session
from polyfleet.placement.apart import Apart
from polyfleet.placement.fleet import PlacementRequest, Revision

TellPlacement = Callable[[dict[str, Any]], None]


@dataclass(eq=False, slots=True)
class Turn:
    """One request's right to run; its sequences share it. `taken` from the first placement until `give_back`.

    Its first placement decides by which weights and tokenizer (`fingerprint`) the request is computed, to its end.
    """

    model: str
    priority: int = 0
    fingerprint: str | None = None  # None: any
    revision: Revision | None = None  # that it was given to; None: any of those weights
    tokenizer_hash: str = ""
    tenant: str = ""
    objectives: Objectives | None = None
    seconds_left: Callable[[], float] | None = None  # until its caller's deadline; None: it has none
    explained: TellPlacement | None = None  # is told what decided each placement
    taken: bool = False
    waiting: int = 0  # of its sequences
    worker_ids: list[str] = field(default_factory=list)  # of those that had one, in turn
    prefills: list[str] = field(default_factory=list)  # where each one's prompt is computed, as RequestRecord says it


class Candidate(Protocol):
    """A sequence that wants a worker. Its methods neither block nor raise."""

    turn: Turn
    resumed: bool

    @property
    def cost(self) -> float:
        """What it is expected to take, in tokens."""
        ...

    def needs(self) -> PlacementRequest:
        """What to place it by, as of now."""
        ...

    def granted(self, session: Session, apart: Apart | None = None) -> None:
        """Go there, now; its prompt is computed where `apart` says."""
        ...

    def denied(self, error: ApiError) -> None:
        """No worker was to be had in time."""
        ...
