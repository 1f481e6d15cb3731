"""`create_app`: the routes, request ids, and errors in OpenAI's shape."""

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polyfleet.gateway.errors import ApiError
from polyfleet.gateway.http.errors import error_response, internal_error, plain_error
from polyfleet.gateway.http.monitoring import health_routes
from polyfleet.gateway.http.more_endpoints import MoreEndpoints
from polyfleet.gateway.http.openai.endpoints import Endpoints
from polyfleet.gateway.http.welcome import Welcome
from polyfleet.gateway.parts import GatewayParts
from polyfleet.placement.explain import told
from polyfleet.wire.ids import new_id
from polyfleet.wire.limits import REQUEST_ID
from polyfleet.wire.placements import TRAILER

PREFLIGHT_SECONDS = 600  # a browser need not ask again so soon


def create_app(parts: GatewayParts, cors_origins: Sequence[str] = ()) -> Starlette:
    """The ASGI application over a gateway's shared parts. Starts nothing and holds nothing itself.

    Browsers let pages of `cors_origins` (`*`: of any) call it; keys travel in a header, so no credentials are allowed.
    """
    to, more = Endpoints(parts), MoreEndpoints(parts)
    cors = Middleware(
        CORSMiddleware,
        allow_origins=cors_origins,
        allow_methods=("GET", "POST"),
        allow_headers=("*",),
        expose_headers=("x-request-id", "retry-after", TRAILER),
        max_age=PREFLIGHT_SECONDS,
    )
    return Starlette(
        routes=[
            Route("/v1/chat/completions", to.chat, methods=["POST"]),
            Route("/v1/completions", to.completions, methods=["POST"]),
            Route("/v1/embeddings", to.embeddings, methods=["POST"]),
            Route("/v1/responses", more.responses, methods=["POST"]),
            Route("/v1/messages", more.messages, methods=["POST"]),
            Route("/v1/messages/count_tokens", more.count_tokens, methods=["POST"]),
            *(Route(path, more.rerank, methods=["POST"]) for path in ("/v1/rerank", "/v2/rerank", "/rerank")),
            *(Route(path, more.score, methods=["POST"]) for path in ("/v1/score", "/score")),
            Route("/tokenize", more.tokenize, methods=["POST"]),
            Route("/detokenize", more.detokenize, methods=["POST"]),
            Route("/v1/models", to.models, methods=["GET"]),
            Route("/v1/models/{name:path}", to.model, methods=["GET"]),
            Route("/", Welcome(parts).show, methods=["GET"]),
            *health_routes(parts.health),
        ],
        middleware=[*([cors] if cors_origins else []), Middleware(Outermost)],
        exception_handlers={
            ApiError: _api_error,
            HTTPException: _http_exception,
            ClientDisconnect: _client_left,
        },
    )


class Outermost:
    """Gives each request an id (the caller's `x-request-id` where it is well-formed), and a fault of ours a 500.

    What an endpoint put into `scope["placements"]` before the answer begins goes into a header.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with `scope["request_id"]` set."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        asked = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        request_id = scope["request_id"] = asked if REQUEST_ID.fullmatch(asked) else new_id("req")
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
                if placements := scope.get("placements"):
                    message["headers"].append((TRAILER.encode(), told(placements).encode()))
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            if started:
                raise  # the server breaks the connection, which is right: the body is not whole
            fault = internal_error(error, request_id)
            await error_response(fault)(scope, receive, send_with_id)


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path} is not served here; see docs/api.md."
    response = plain_error(error.status_code, message, "not_found" if error.status_code == 404 else "bad_request")
    response.headers.update(error.headers or {})
    return response


async def _client_left(request: Request, error: Exception) -> Response:
    return plain_error(499, "The client left before its body was whole.", "cancelled")
