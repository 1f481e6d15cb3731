"""What machines ask a gateway about itself: health on both HTTP ports, metrics on a port of their own.

Metrics tell each key's usage, so they are not behind the door that callers come through.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from polyfleet.gateway.health import Health
from polyfleet.gateway.metrics import Metrics


class Readiness(Protocol):
    """Whether a gateway can serve, and why not."""

    @property
    def serving(self) -> bool:
        """Whether new requests are welcome."""
        ...

    @property
    def reason(self) -> str:
        """Why not, in one sentence; empty while serving."""
        ...


def create_metrics_app(health: Health, metrics: Metrics) -> Starlette:
    """The ASGI application of the metrics port: `/metrics` in Prometheus' text format, and health."""

    async def text() -> bytes:
        return metrics_text(metrics)

    return metrics_app(health, text)


def metrics_text(metrics: Metrics) -> bytes:
    """All of a process, as Prometheus reads it."""
    return generate_latest(metrics.registry) + generate_latest(metrics.process.others)


def metrics_app(health: Readiness, text: Callable[[], Awaitable[bytes]]) -> Starlette:
    """The same with the text of `/metrics` from elsewhere."""

    async def show(request: Request) -> Response:
        return Response(await text(), media_type=CONTENT_TYPE_LATEST)

    async def guide(request: Request) -> Response:
        return PlainTextResponse("A Polyfleet gateway's own port: /metrics for Prometheus, /healthz, /readyz\n")

    return Starlette(
        routes=[
            *health_routes(health),
            Route("/metrics", show, methods=["GET"]),
            Route("/", guide, methods=["GET"]),
        ]
    )


def health_routes(health: Readiness) -> list[Route]:
    """`/healthz`: this process answers. `/readyz`: it can serve, else 503 and the reason."""

    async def healthz(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(request: Request) -> Response:
        return PlainTextResponse("ok\n") if health.serving else PlainTextResponse(f"{health.reason}\n", 503)

    return [Route("/healthz", healthz, methods=["GET"]), Route("/readyz", readyz, methods=["GET"])]
