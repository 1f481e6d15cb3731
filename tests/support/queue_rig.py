"""A request queue over a fleet that the test sets."""

from typing import cast

from tests.support.undialled import undialled

from polyfleet.gateway.config import Limits
from polyfleet.gateway.errors import ApiError
from polyfleet.gateway.fleet.session import Session
from polyfleet.gateway.fleet.view import FleetView
from polyfleet.gateway.metrics import Metrics
from polyfleet.gateway.request.queue import RequestQueue
from polyfleet.gateway.request.turn import Turn
from polyfleet.gateway.tenants.fairness import FairOrder
from polyfleet.placement.apart import Apart
from polyfleet.placement.fleet import PlacementRequest, Worker, WorkerState
from polyfleet.placement.place import Placement, place
from polyfleet.placement.policy import Policy
from polyfleet.placement.pool import FleetIndex
from polyfleet.process.keys import Tenant


class FakeSession:
    """Only its id counts here."""

    def __init__(self, worker_id: str) -> None:
        self.worker_id = worker_id


class Fleet(FleetView):
    """A view whose workers the test sets: worker id -> model."""

    def __init__(self) -> None:
        super().__init__("gw-test", undialled)
        self.serve({})

    def serve(self, models: dict[str, str]) -> None:
        self.workers = tuple(
            Worker(worker_id, "a:1", model, "cpu", WorkerState.READY, context_length=100)
            for worker_id, model in models.items()
        )
        self.sessions = {worker_id: cast(Session, FakeSession(worker_id)) for worker_id in models}
        self.changed.call()

    def fleet(self) -> FleetIndex:
        return FleetIndex(Policy(), self.workers)

    def _ready(self, name: str) -> list[Session]:
        return [self.sessions[worker.worker_id] for worker in self.workers if worker.model == name]

    def _prune(self) -> None:
        pass


class Wish:
    """A candidate that notes what becomes of it."""

    def __init__(self, turn: Turn, log: list[str], name: str = "", *, resumed: bool = False) -> None:
        self.turn, self.resumed, self.cost = turn, resumed, 1.0
        self._log, self._name = log, name or turn.model
        self.error: ApiError | None = None

    def needs(self) -> PlacementRequest:
        return PlacementRequest(self.turn.model, 1, 1)

    def granted(self, session: Session, apart: Apart | None = None) -> None:
        self._log.append(f"{self._name}@{session.worker_id}")

    def denied(self, error: ApiError) -> None:
        self.error = error


class Rig:
    """A queue over a fleet that the test sets; `log` holds what was placed, in order."""

    def __init__(self, **limits: float) -> None:
        self.fleet, self.metrics, self.log = Fleet(), Metrics(), list[str]()
        self.num_places = 0
        self.tenants = dict[str, Tenant]()
        fair = FairOrder(lambda: self.tenants, lambda: 2)
        self.queue = RequestQueue(self.fleet, self._place, Limits(**limits), self.metrics, fair)  # type: ignore[arg-type]

    def _place(self, request: PlacementRequest, fleet: FleetIndex) -> Placement:
        self.num_places += 1
        return place(request, fleet)

    def submit(self, model: str = "m", name: str = "", priority: int = 0, turn: Turn | None = None) -> Wish:
        wish = Wish(turn or Turn(model, priority), self.log, name)
        self.queue.submit(wish)
        return wish

    def queued(self, model: str = "m") -> float:
        return self.metrics.registry.get_sample_value("polyfleet_requests_queued", {"model": model}) or 0.0
