"""The models: what is deployed and how it loads, and to scale, take back and undeploy one."""

from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from polyfleet.console.fleet.view import FleetView
from polyfleet.console.fleet.words import state_word
from polyfleet.console.pages.acts import act
from polyfleet.console.pages.deploying import workers_of
from polyfleet.console.pages.guard import Guard, form_of
from polyfleet.console.pages.look import Look, language_of
from polyfleet.v1 import fleet_pb2


@dataclass(frozen=True)
class Served:
    """A model that somebody wanted, and the workers that it has."""

    deployment: fleet_pb2.ModelDeployment
    workers: tuple[fleet_pb2.FleetWorker, ...]
    ours: bool  # made by Deploy; else a pool, which the chart made

    @property
    def ready(self) -> int:
        """How many workers are."""
        return sum(state_word(each.status.state) == "ready" for each in self.workers)

    @property
    def name(self) -> str:
        """The name that clients call it by."""
        return self.deployment.model_name or self.deployment.name


def served_models(snapshot: fleet_pb2.FleetSnapshot) -> list[Served]:
    """Deployments and pools, with their workers, by name."""
    kinds = ((snapshot.deployments, True), (snapshot.pools, False))
    return [
        Served(each, tuple(worker for worker in snapshot.workers if worker.info.deployment == each.name), ours)
        for deployments, ours in kinds
        for each in sorted(deployments, key=lambda each: each.name)
    ]


class ModelPages:
    """Routes of its own."""

    def __init__(self, guard: Guard, look: Look, view: FleetView) -> None:
        self._guard, self._look, self._view = guard, look, view

    def routes(self) -> list[Route]:
        """Where it answers."""
        operators = self._guard.operators
        return [
            Route("/models", operators(self._list), methods=["GET"]),
            Route("/models/{name}/state", operators(self._state)),
            Route("/models/{name}/scale", operators(self._scale), methods=["POST"]),
            Route("/models/{name}/undo", operators(self._undo), methods=["POST"]),
            Route("/models/{name}/undeploy", operators(self._undeploy), methods=["POST"]),
        ]

    async def _list(self, request: Request) -> Response:
        await self._view.fresh()
        return self._look.page(request, "models.html", models=served_models(self._view.snapshot), state_word=state_word)

    async def _state(self, request: Request) -> Response:
        """How one is doing, for a page that shows it."""
        await self._view.fresh()
        name, root = request.path_params["name"], request.scope.get("root_path", "")
        found = next((each for each in served_models(self._view.snapshot) if each.deployment.name == name), None)
        if found is None:
            return Response(status_code=404)
        facts: dict[str, Any] = {"each": found, "state_word": state_word}
        return HTMLResponse(self._look.part("model_state.html", language_of(request), root, **facts))

    async def _scale(self, request: Request) -> Response:
        name = request.path_params["name"]
        found = next((each for each in self._view.snapshot.deployments if each.name == name), None)
        if found is None:
            return self._look.page(request, "absent.html", 404, what=name)
        wish = fleet_pb2.ModelDeployment()
        wish.CopyFrom(found)
        wish.ClearField("autoscaling")  # the number has one owner
        try:
            wish.workers = workers_of(await form_of(request))
        except ValueError as error:
            return self._look.page(request, "refused.html", 409, problem=str(error))
        asked = fleet_pb2.DeployRequest(deployment=wish)
        return await act(self._look, self._view, request, "Deploy", asked, fleet_pb2.DeployResponse, "/models")

    async def _undo(self, request: Request) -> Response:
        asked, answer = fleet_pb2.UndoRolloutRequest(name=request.path_params["name"]), fleet_pb2.UndoRolloutResponse
        return await act(self._look, self._view, request, "UndoRollout", asked, answer, "/models")

    async def _undeploy(self, request: Request) -> Response:
        asked, answer = fleet_pb2.UndeployRequest(name=request.path_params["name"]), fleet_pb2.UndeployResponse
        return await act(self._look, self._view, request, "Undeploy", asked, answer, "/models")
