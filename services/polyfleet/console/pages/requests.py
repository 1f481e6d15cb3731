"""The requests that run and those that have ended, and why each was placed where it was. Never a text of theirs."""

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from polyfleet.console.fleet.link import FleetProblem
from polyfleet.console.fleet.view import FleetView
from polyfleet.console.pages.guard import Guard
from polyfleet.console.pages.look import Look
from polyfleet.v1 import operations_pb2


def placement_of(record: operations_pb2.RequestRecord) -> list[dict[str, Any]]:
    """Its placements as `polyfleet explain` has them, the last one last; none where none was kept."""
    try:
        found = json.loads(record.placement or "[]")
    except ValueError:
        return []
    return [each for each in (found if isinstance(found, list) else [found]) if isinstance(each, dict)]


class RequestPages:
    """Routes of its own."""

    def __init__(self, guard: Guard, look: Look, view: FleetView) -> None:
        self._guard, self._look, self._view = guard, look, view

    def routes(self) -> list[Route]:
        """Where it answers."""
        operators = self._guard.operators
        return [Route("/requests", operators(self._list)), Route("/requests/{id}", operators(self._one))]

    async def _list(self, request: Request) -> Response:
        tenant, model = (request.query_params.get(name, "") for name in ("tenant", "model"))
        asked = operations_pb2.ListRequestsRequest(tenant=tenant, model=model)
        try:
            found = await self._view.link.call("ListRequests", asked, operations_pb2.ListRequestsResponse)
        except FleetProblem as error:
            found, problem = operations_pb2.ListRequestsResponse(), str(error)
        else:
            problem = ""
        facts: dict[str, Any] = {"tenant": tenant, "model": model, "problem": problem}
        return self._look.page(request, "requests.html", running=found.running, ended=found.ended, **facts)

    async def _one(self, request: Request) -> Response:
        wanted = request.path_params["id"]
        await self._view.fresh()
        known = (*self._view.requests.running, *self._view.requests.ended)
        record = next((each for each in known if each.request_id == wanted), None)
        if record is None:
            return self._look.page(request, "absent.html", 404, what=wanted)
        return self._look.page(request, "request.html", record=record, placements=placement_of(record))
