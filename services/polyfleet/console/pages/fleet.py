"""The fleet: devices by brand and model, workers, load and latencies, live; and each device and worker."""

import json
from collections.abc import AsyncIterator
from functools import lru_cache
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from polyfleet.console.fleet.conditions import judged
from polyfleet.console.fleet.devices import device_id
from polyfleet.console.fleet.heat import Group, cell_of, groups_of, readings_of, shape_of
from polyfleet.console.fleet.link import FleetProblem
from polyfleet.console.fleet.view import FleetView
from polyfleet.console.fleet.words import state_word
from polyfleet.console.pages.acts import act
from polyfleet.console.pages.guard import Guard
from polyfleet.console.pages.look import Look, language_of
from polyfleet.v1 import fleet_pb2, operations_pb2

LOG_LINES = 200
MAX_WORKERS = 50  # that a page lists, those that are not ready first; the search finds the others
MAX_MAPS = 32  # kept, of those who look for different things
Key = tuple[str, str, str]  # language, root path, what is looked for


def workers_of(snapshot: fleet_pb2.FleetSnapshot, find: str = "") -> list[fleet_pb2.FleetWorker]:
    """Those whose id, host, model or accelerator has `find` in it: those that are not ready first."""
    found = [
        each
        for each in snapshot.workers
        if find.lower()
        in f"{each.info.worker_id} {each.info.host} {each.info.model.name} {each.info.accelerator}".lower()
    ]
    return sorted(found, key=lambda each: (state_word(each.status.state) == "ready", each.info.worker_id))


class FleetPages:
    """Routes of its own."""

    def __init__(self, guard: Guard, look: Look, view: FleetView) -> None:
        self._guard, self._look, self._view = guard, look, view
        self._rendered: tuple[int, dict[Key, dict[str, str]]] = (-1, {})
        self._maps: dict[Key, tuple[object, str]] = {}

    def routes(self) -> list[Route]:
        """Where it answers."""
        operators = self._guard.operators
        return [
            Route("/fleet", operators(self._fleet)),
            Route("/live/fleet", operators(self._live)),
            Route("/history.json", operators(self._history)),
            Route("/devices/{id:path}/history.json", operators(self._device_history)),
            Route("/devices/{id:path}", operators(self._device)),
            Route("/workers/{id}/log", operators(self._log)),
            Route("/workers/{id}/drain", operators(self._drain), methods=["POST"]),
            Route("/workers/{id}", operators(self._worker)),
        ]

    async def _fleet(self, request: Request) -> Response:
        find = request.query_params.get("find", "")
        if self._view.prometheus:
            self._view.prometheus.look()
        await self._view.fresh()
        groups = groups_of(self._view.devices, find)
        parts = self._parts(request, find) | {"devices": self._map(key_of(request, find), groups)}
        del parts["readings"]  # they stand in the map
        return self._look.page(request, "fleet.html", find=find, parts=parts)

    def _parts(self, request: Request, find: str) -> dict[str, str]:
        """What changes on the fleet's page, by name; made once for all who look at the same."""
        key, number = key_of(request, find), self._view.changed.number
        if self._rendered[0] != number:
            self._rendered = (number, {})
        made = self._rendered[1]
        if key not in made:
            found = workers_of(self._view.snapshot, find)
            listed: dict[str, Any] = {"workers": found[:MAX_WORKERS], "more": found[MAX_WORKERS:]}
            made[key] = {
                "tiles": self._look.part("fleet_tiles.html", *key[:2]),
                "conditions": self._conditions_part(key),
                **self._devices_parts(key),
                "workers": self._look.part("fleet_workers.html", *key[:2], state_word=state_word, **listed),
            }
        return made[key]

    def _conditions_part(self, key: Key) -> str:
        """What is wrong: as Prometheus says, else as can be judged from here."""
        known, view = self._view.prometheus, self._view
        asked = known is not None and known.firing is not None
        conditions = known.firing if known and asked else judged(view.snapshot, view.devices)
        facts = {"told_by": known.url if known and asked else "", "problem": known.problem if known else ""}
        return self._look.part("fleet_conditions.html", *key[:2], conditions=conditions, **facts)

    def _devices_parts(self, key: Key) -> dict[str, str]:
        """The heat map, the largest part, as it was made when it got its shape; and what its cells read now."""
        groups = groups_of(self._view.devices, key[2])
        shape, made = shape_of(groups), self._maps.get(key)
        if made is None or made[0] != shape:
            made = shape, self._map(key, groups)
            if len(self._maps) >= MAX_MAPS:
                del self._maps[next(iter(self._maps))]
            self._maps[key] = made
        return {"devices": made[1], "readings": json.dumps(readings_of(groups), separators=(",", ":"))}

    def _map(self, key: Key, groups: list[Group]) -> str:
        return self._look.part("fleet_devices.html", *key[:2], groups=groups)

    async def _live(self, request: Request) -> Response:
        find = request.query_params.get("find", "")

        async def events() -> AsyncIterator[str]:
            seen, shown = -1, dict[str, str]()
            with self._view.watched():
                while not self._view.ended:
                    seen = await self._view.changed.wait(seen)
                    parts = self._parts(request, find)
                    news = [event(name, seen, part) for name, part in parts.items() if part != shown.get(name)]
                    yield "".join(news) or ":\n\n"
                    shown = parts

        return StreamingResponse(events(), media_type="text/event-stream")

    async def _history(self, request: Request) -> Response:
        known = self._view.prometheus
        return JSONResponse(known.lines if known and known.lines else self._view.history.told())

    async def _device(self, request: Request) -> Response:
        wanted = request.path_params["id"]
        await self._view.fresh()
        device = next((each for each in self._view.devices if device_id(each) == wanted), None)
        if device is None:
            return self._look.page(request, "absent.html", 404, what=wanted)
        history = self._view.device_histories[wanted]
        return self._look.page(
            request, "device.html", device=device, cell=cell_of(device), changes=[*history.changes][::-1]
        )

    async def _device_history(self, request: Request) -> Response:
        history = self._view.device_histories.get(request.path_params["id"])
        return JSONResponse(history.readings.told() if history else {}, 200 if history else 404)

    async def _worker(self, request: Request) -> Response:
        wanted = request.path_params["id"]
        await self._view.fresh()
        worker = next((each for each in self._view.snapshot.workers if each.info.worker_id == wanted), None)
        if worker is None:
            return self._look.page(request, "absent.html", 404, what=wanted)
        devices = [cell_of(each) for each in self._view.devices if wanted in each.worker_ids]
        return self._look.page(request, "worker.html", worker=worker, devices=devices, state_word=state_word)

    async def _log(self, request: Request) -> Response:
        asked = operations_pb2.TailLogRequest(worker_id=request.path_params["id"], lines=LOG_LINES)
        try:
            lines = list((await self._view.link.call("TailLog", asked, operations_pb2.TailLogResponse)).lines)
        except FleetProblem as error:
            lines = [json.dumps({"level": "error", "message": str(error)})]
        root, language = request.scope.get("root_path", ""), language_of(request)
        return Response(
            self._look.part("log_part.html", language, root, lines=[read_line(line) for line in lines]),
            media_type="text/html",
        )

    async def _drain(self, request: Request) -> Response:
        wanted = request.path_params["id"]
        asked, answer = fleet_pb2.DrainRequest(worker_id=wanted), fleet_pb2.DrainResponse
        return await act(self._look, self._view, request, "Drain", asked, answer, f"/workers/{wanted}")


def key_of(request: Request, find: str) -> Key:
    """What parts of pages are made by."""
    return language_of(request), request.scope.get("root_path", ""), find


@lru_cache(64)
def event(name: str, number: int, part: str) -> str:
    """A part as an event of a stream; the same for all who look at it."""
    data = "".join(f"data: {line}\n" for line in part.splitlines())
    return f"event: {name}\nid: {number}\n{data}\n"


def read_line(line: str) -> dict[str, str]:
    """A line of a log: its time, level, message, and what else it says; one that is no JSON is all message."""
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        return {"time": "", "level": "", "message": line, "more": ""}
    words = {name: str(found.pop(name, "")) for name in ("time", "level", "message")}
    return words | {"more": json.dumps(found, ensure_ascii=False) if found else ""}
