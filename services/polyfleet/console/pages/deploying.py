"""To deploy a model, or to roll one to another revision; and to check before whether it fits."""

import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from polyfleet.console.fleet.link import FleetProblem
from polyfleet.console.fleet.view import FleetView
from polyfleet.console.pages.guard import Guard, form_of
from polyfleet.console.pages.look import Look
from polyfleet.v1 import fleet_pb2, operations_pb2
from polyfleet.wire.options import OPTIONS, checked

MAX_WORKERS = 1000
CHECK_SECONDS = 130.0  # more than a worker takes
OPTION = "option."  # begins the names of a form's fields that are engine options


def deployment_of(form: Mapping[str, str]) -> fleet_pb2.ModelDeployment:
    """What a form wishes for. Raises ValueError (FieldError too), which names the field."""
    if not form.get("name", "").strip():
        raise ValueError("name: is missing.")
    wish = fleet_pb2.ModelDeployment(name=form["name"].strip(), workers=workers_of(form))
    return rolled(wish, form)


def rolled(before: fleet_pb2.ModelDeployment, form: Mapping[str, str]) -> fleet_pb2.ModelDeployment:
    """The deployment with the model, its name, accelerators and options that a form has. Raises ValueError."""
    if not form.get("source", "").strip():
        raise ValueError("source: is missing.")
    options: dict[str, Any] = {}
    for field, text in form.items():
        if field.startswith(OPTION) and text.strip():
            options[field.removeprefix(OPTION)] = option_of(field.removeprefix(OPTION), text.strip())
    wish = fleet_pb2.ModelDeployment()
    wish.CopyFrom(before)
    wish.source, wish.model_name = form["source"].strip(), form.get("model_name", "").strip()
    wish.accelerators[:] = [each.strip() for each in form.get("accelerators", "").split(",") if each.strip()]
    wish.options.CopyFrom(fleet_pb2.WorkerOptions(**checked(options)))  # type: ignore[arg-type]
    return wish


def form_from(deployment: fleet_pb2.ModelDeployment) -> dict[str, str]:
    """The fields of a form that say what is deployed."""
    options = {
        f"{OPTION}{field.name}": value if isinstance(value, str) else json.dumps(value)
        for field, value in deployment.options.ListFields()
    }
    accelerators, revision = ", ".join(deployment.accelerators), str(deployment.revision)
    facts = {"source": deployment.source, "model_name": deployment.model_name, "accelerators": accelerators}
    return facts | {"revision": revision} | options


def option_of(name: str, text: str) -> object:
    """An option's value as a form has it, in its type. Raises ValueError."""
    if name not in OPTIONS:
        raise ValueError(f"{name}: is no option.")
    if OPTIONS[name].kind is str:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def workers_of(form: Mapping[str, str]) -> int:
    """How many are wished for. Raises ValueError."""
    text = form.get("workers", "1").strip()
    if not text.isdecimal() or int(text) > MAX_WORKERS:
        raise ValueError(f"workers: must be a number from 0 to {MAX_WORKERS}, not {text!r:.20}.")
    return int(text)


def revision_of(form: Mapping[str, str]) -> int:
    """The one that the visitor saw, which alone is to be changed. Raises ValueError."""
    text = form.get("revision", "")
    if not text.isdecimal() or len(text) > 9:
        raise ValueError("revision: is missing: load this page again.")
    return int(text)


class DeployPages:
    """Routes of its own."""

    def __init__(self, guard: Guard, look: Look, view: FleetView) -> None:
        self._guard, self._look, self._view = guard, look, view

    def routes(self) -> list[Route]:
        """Where it answers."""
        operators = self._guard.operators
        return [
            Route("/models", operators(self._deploy), methods=["POST"]),
            Route("/models/new", operators(self._new)),
            Route("/models/{name}/roll", operators(self._rolling), methods=["GET"]),
            Route("/models/{name}/roll", operators(self._roll), methods=["POST"]),
        ]

    async def _new(self, request: Request) -> Response:
        return await self._form(request, {})

    async def _rolling(self, request: Request) -> Response:
        await self._view.fresh()
        found = self._known(request)
        if found is None:
            return self._look.page(request, "absent.html", 404, what=request.path_params["name"])
        return await self._form(request, form_from(found), known=found)

    async def _deploy(self, request: Request) -> Response:
        form = await form_of(request)
        try:
            if form.get("act") == "check":
                return await self._checked(request, form, None)
            wish = deployment_of(form)
            if any(each.name == wish.name for each in self._view.snapshot.deployments):
                raise ValueError(f"name: there is a model {wish.name} already.")
            await self._wish(wish)
        except (ValueError, FleetProblem) as error:
            return await self._form(request, form, str(error))
        return self._to_list(request)

    async def _roll(self, request: Request) -> Response:
        form, known = await form_of(request), self._known(request)
        if known is None:
            return self._look.page(request, "absent.html", 404, what=request.path_params["name"])
        try:
            if form.get("act") == "check":
                return await self._checked(request, form, known)
            wish = rolled(known, form)
            wish.revision = revision_of(form)
            await self._wish(wish)
        except (ValueError, FleetProblem) as error:
            return await self._form(request, form, str(error), known=known)
        return self._to_list(request)

    def _known(self, request: Request) -> fleet_pb2.ModelDeployment | None:
        name = request.path_params["name"]
        return next((each for each in self._view.snapshot.deployments if each.name == name), None)

    async def _checked(
        self, request: Request, form: Mapping[str, str], known: fleet_pb2.ModelDeployment | None
    ) -> Response:
        """The form again, and whether what it wishes for fits. Raises ValueError and FleetProblem."""
        wish = rolled(fleet_pb2.ModelDeployment(), form)
        asked = fleet_pb2.CheckModelRequest(source=wish.source, accelerators=wish.accelerators, options=wish.options)
        answer = await self._view.link.call("CheckModel", asked, fleet_pb2.CheckModelResponse, CHECK_SECONDS)
        return await self._form(request, form, known=known, seen=json.loads(answer.inspection))

    async def _wish(self, wish: fleet_pb2.ModelDeployment) -> None:
        """Deploy it; then the list has the change already."""
        await self._view.link.call("Deploy", fleet_pb2.DeployRequest(deployment=wish), fleet_pb2.DeployResponse)
        await self._view.poll()

    async def _form(
        self,
        request: Request,
        form: Mapping[str, str],
        problem: str = "",
        *,
        known: fleet_pb2.ModelDeployment | None = None,
        seen: Mapping[str, Any] | None = None,
    ) -> Response:
        asked = operations_pb2.DescribeOptionsRequest()
        try:
            schema = await self._view.link.call("DescribeOptions", asked, operations_pb2.DescribeOptionsResponse)
        except FleetProblem as error:
            return self._look.page(request, "refused.html", 503, problem=str(error))
        facts: dict[str, Any] = {
            "options": json.loads(schema.json_schema).get("properties", {}),
            "accelerators": sorted({device.state.accelerator for device in self._view.devices}),
            "known": known,
            "seen": seen,
        }
        return self._look.page(request, "deploy.html", 400 if problem else 200, form=form, problem=problem, **facts)

    @staticmethod
    def _to_list(request: Request) -> Response:
        return RedirectResponse(f"{request.scope.get('root_path', '')}/models", 303)
