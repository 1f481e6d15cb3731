"""The models: what is deployed and how it loads, and to deploy, scale and undeploy one."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from polyfleet.console.fleet.link import FleetProblem
from polyfleet.console.fleet.view import FleetView
from polyfleet.console.fleet.words import state_word
from polyfleet.console.pages.acts import act
from polyfleet.console.pages.guard import Guard, form_of
from polyfleet.console.pages.look import Look
from polyfleet.v1 import fleet_pb2, operations_pb2
from polyfleet.wire.options import OPTIONS, checked

MAX_WORKERS = 1000
OPTION = "option."  # begins the names of a form's fields that are engine options


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


def deployment_of(form: Mapping[str, str]) -> fleet_pb2.ModelDeployment:
    """What a form wishes for. Raises ValueError (FieldError too), which names the field."""
    for field in ("name", "source"):
        if not form.get(field, "").strip():
            raise ValueError(f"{field}: is missing.")
    accelerators = [each.strip() for each in form.get("accelerators", "").split(",") if each.strip()]
    options: dict[str, Any] = {}
    for field, text in form.items():
        if field.startswith(OPTION) and text.strip():
            options[field.removeprefix(OPTION)] = option_of(field.removeprefix(OPTION), text.strip())
    return fleet_pb2.ModelDeployment(
        name=form["name"].strip(),
        model_name=form.get("model_name", "").strip(),
        source=form["source"].strip(),
        accelerators=accelerators,
        workers=workers_of(form),
        options=fleet_pb2.WorkerOptions(**checked(options)),  # type: ignore[arg-type]
    )


def option_of(name: str, text: str) -> object:
    """An option's value as a form has it, in its type. Raises ValueError."""
    if name not in OPTIONS:
        raise ValueError(f"{name}: is no option.")
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


class ModelPages:
    """Routes of its own."""

    def __init__(self, guard: Guard, look: Look, view: FleetView) -> None:
        self._guard, self._look, self._view = guard, look, view

    def routes(self) -> list[Route]:
        """Where it answers."""
        operators = self._guard.operators
        return [
            Route("/models", operators(self._list), methods=["GET"]),
            Route("/models", operators(self._deploy), methods=["POST"]),
            Route("/models/new", operators(self._new)),
            Route("/models/{name}/scale", operators(self._scale), methods=["POST"]),
            Route("/models/{name}/undo", operators(self._undo), methods=["POST"]),
            Route("/models/{name}/undeploy", operators(self._undeploy), methods=["POST"]),
        ]

    async def _list(self, request: Request) -> Response:
        await self._view.fresh()
        return self._look.page(request, "models.html", models=served_models(self._view.snapshot), state_word=state_word)

    async def _new(self, request: Request) -> Response:
        return await self._form(request, {}, "")

    async def _form(self, request: Request, form: Mapping[str, str], problem: str) -> Response:
        try:
            schema = (
                await self._view.link.call(
                    "DescribeOptions",
                    operations_pb2.DescribeOptionsRequest(),
                    operations_pb2.DescribeOptionsResponse,
                )
            ).json_schema
        except FleetProblem as error:
            return self._look.page(request, "refused.html", 503, problem=str(error))
        options = json.loads(schema).get("properties", {})
        accelerators = sorted({device.state.accelerator for device in self._view.devices})
        facts = {"options": options, "form": form, "problem": problem, "accelerators": accelerators}
        return self._look.page(request, "deploy.html", 400 if problem else 200, **facts)

    async def _deploy(self, request: Request) -> Response:
        form = await form_of(request)
        try:
            wish = deployment_of(form)
            if any(each.name == wish.name for each in self._view.snapshot.deployments):
                raise ValueError(f"name: there is a model {wish.name} already.")
            asked = fleet_pb2.DeployRequest(deployment=wish)
            await self._view.link.call("Deploy", asked, fleet_pb2.DeployResponse)
        except (ValueError, FleetProblem) as error:
            return await self._form(request, form, str(error))
        return await self._seen(request)

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

    async def _seen(self, request: Request) -> Response:
        """Back to the list, which has the change already."""
        await self._view.poll()
        return RedirectResponse(f"{request.scope.get('root_path', '')}/models", 303)
