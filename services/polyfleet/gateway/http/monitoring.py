"""What machines ask a gateway about itself: health on both HTTP ports, metrics on a port of their own.

Metrics tell each key's usage, so they are not behind the door that callers come through.
"""

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from polyfleet.gateway.health import Health
from polyfleet.gateway.metrics import Metrics


def create_metrics_app(health: Health, metrics: Metrics) -> Starlette:
    """The ASGI application of the metrics port: `/metrics` in Prometheus' text format, and health."""

    async def show(request: Request) -> Response:
        shown = generate_latest(metrics.registry) + generate_latest(metrics.process.others)
        return Response(shown, media_type=CONTENT_TYPE_LATEST)

    async def guide(request: Request) -> Response:
        return PlainTextResponse("A Polyfleet gateway's own port: /metrics for Prometheus, /healthz, /readyz\n")

    return Starlette(
        routes=[
            *health_routes(health),
            Route("/metrics", show, methods=["GET"]),
            Route("/", guide, methods=["GET"]),
        ]
    )


def health_routes(health: Health) -> list[Route]:
    """`/healthz`: this process answers. `/readyz`: it can serve, else 503 and the reason."""

    async def healthz(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(request: Request) -> Response:
        return PlainTextResponse("ok\n") if health.serving else PlainTextResponse(f"{health.reason}\n", 503)

    return [Route("/healthz", healthz, methods=["GET"]), Route("/readyz", readyz, methods=["GET"])]
