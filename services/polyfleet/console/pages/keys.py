"""Keys made, limited and revoked, and what was used: an operator's of all, a tenant's of their own."""

import csv
import io
from datetime import datetime, timedelta, timezone

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from polyfleet.console.fleet.link import FleetProblem
from polyfleet.console.fleet.view import FleetView
from polyfleet.console.pages.guard import Guard, form_of, session_of
from polyfleet.console.pages.look import Look
from polyfleet.v1 import fleet_pb2, operations_pb2

COLUMNS = ("day", "tenant", "model", "requests", "prompt_tokens", "cached_tokens", "completion_tokens")
USUAL_DAYS = 30


class KeyPages:
    """Routes of its own."""

    def __init__(self, guard: Guard, look: Look, view: FleetView) -> None:
        self._guard, self._look, self._view = guard, look, view

    def routes(self) -> list[Route]:
        """Where it answers."""
        operators, anybody = self._guard.operators, self._guard.anybody
        return [
            Route("/keys", operators(self._list), methods=["GET"]),
            Route("/keys", operators(self._create), methods=["POST"]),
            Route("/keys/{id}/revoke", operators(self._revoke), methods=["POST"]),
            Route("/tenants/{id:path}/limits", operators(self._limit), methods=["POST"]),
            Route("/usage", anybody(self._usage)),
            Route("/usage.csv", anybody(self._csv)),
        ]

    async def _list(self, request: Request) -> Response:
        return await self._keys(request)

    async def _keys(self, request: Request, problem: str = "", secret: str = "", made: str = "") -> Response:
        try:
            asked = operations_pb2.ListKeysRequest()
            found = await self._view.link.call("ListKeys", asked, operations_pb2.ListKeysResponse)
        except FleetProblem as error:
            found, problem = operations_pb2.ListKeysResponse(), problem or str(error)
        facts = {"keys": found.keys, "tenants": found.tenants, "problem": problem, "secret": secret, "made": made}
        return self._look.page(request, "keys.html", 400 if problem and request.method == "POST" else 200, **facts)

    async def _create(self, request: Request) -> Response:
        form = await form_of(request)
        try:
            key = operations_pb2.KeyInfo(
                id=form.get("id", "").strip(), role=form.get("role", ""), tenant=form.get("tenant", "").strip()
            )
            if days := form.get("days", "").strip():
                expiry = datetime.now(timezone.utc) + timedelta(days=whole("days", days, 3650))
                key.expires_unix_seconds = int(expiry.timestamp())
            asked = operations_pb2.CreateKeyRequest(key=key)
            made = await self._view.link.call("CreateKey", asked, operations_pb2.CreateKeyResponse)
        except (ValueError, FleetProblem) as error:
            return await self._keys(request, str(error))
        return await self._keys(request, secret=made.secret, made=made.key.id)

    async def _revoke(self, request: Request) -> Response:
        asked = operations_pb2.RevokeKeyRequest(id=request.path_params["id"])
        try:
            await self._view.link.call("RevokeKey", asked, operations_pb2.RevokeKeyResponse)
        except FleetProblem as error:
            return await self._keys(request, str(error))
        return RedirectResponse(f"{request.scope.get('root_path', '')}/keys", 303)

    async def _limit(self, request: Request) -> Response:
        form = await form_of(request)
        limits = operations_pb2.TenantLimits(tenant=request.path_params["id"])
        try:
            for name in ("tokens_per_minute", "max_concurrent"):
                setattr(limits, name, whole(name, form.get(name, "").strip() or "0", 2**31 - 1))
            limits.weight = decimal("weight", form.get("weight", "").strip() or "1")
            asked = operations_pb2.LimitTenantRequest(limits=limits)
            await self._view.link.call("LimitTenant", asked, operations_pb2.LimitTenantResponse)
        except (ValueError, FleetProblem) as error:
            return await self._keys(request, str(error))
        return RedirectResponse(f"{request.scope.get('root_path', '')}/keys", 303)

    async def _rows(self, request: Request) -> list[fleet_pb2.UsageRow]:
        """Of the days that are asked for; a tenant's are their own. Raises FleetProblem."""
        session, asked = session_of(request), request.query_params
        usual = (datetime.now(timezone.utc) - timedelta(days=USUAL_DAYS)).strftime("%Y-%m-%d")
        usage = fleet_pb2.UsageRequest(
            first_day=asked.get("first", "") or usual,
            last_day=asked.get("last", ""),
            tenant=asked.get("tenant", "") if session.operator else session.principal.tenant,
        )
        return list((await self._view.link.call("Usage", usage, fleet_pb2.UsageResponse)).rows)

    async def _usage(self, request: Request) -> Response:
        try:
            rows, problem = await self._rows(request), ""
        except FleetProblem as error:
            rows, problem = [], str(error)
        asked = {name: request.query_params.get(name, "") for name in ("first", "last", "tenant")}
        return self._look.page(request, "usage.html", rows=rows[::-1], problem=problem, asked=asked)

    async def _csv(self, request: Request) -> Response:
        try:
            rows = await self._rows(request)
        except FleetProblem as error:
            return Response(str(error), 503)
        text = io.StringIO()
        table = csv.writer(text)
        table.writerow(COLUMNS)
        table.writerows([harmless(str(getattr(row, name))) for name in COLUMNS] for row in rows)
        headers = {"content-disposition": 'attachment; filename="polyfleet-usage.csv"'}
        return Response(text.getvalue(), media_type="text/csv", headers=headers)


def harmless(text: str) -> str:
    """No formula for a spreadsheet."""
    return f"'{text}" if text[:1] in "=+-@\t\r" and text else text


def whole(field: str, text: str, most: int) -> int:
    """A number that a form has. Raises ValueError."""
    if not text.isdecimal() or int(text) > most:
        raise ValueError(f"{field}: must be a number from 0 to {most}, not {text!r:.20}.")
    return int(text)


def decimal(field: str, text: str) -> float:
    """A number that a form has, with a fraction. Raises ValueError."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{field}: must be a number, not {text!r:.20}.") from None
