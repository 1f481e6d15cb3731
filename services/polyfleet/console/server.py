"""The console as a whole: the pages over the parts that they show, behind one port."""

import asyncio
import logging
from functools import partial
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from polyfleet.console.access.headers import SecureHeaders
from polyfleet.console.access.sessions import Sessions
from polyfleet.console.config import ConsoleConfig
from polyfleet.console.fleet.link import FleetLink
from polyfleet.console.fleet.prometheus import Prometheus
from polyfleet.console.fleet.view import FleetView
from polyfleet.console.pages.bench import BenchPages
from polyfleet.console.pages.chat import ChatPages
from polyfleet.console.pages.deploying import DeployPages
from polyfleet.console.pages.entrance import Entrance
from polyfleet.console.pages.fleet import FleetPages
from polyfleet.console.pages.guard import Guard
from polyfleet.console.pages.keys import KeyPages
from polyfleet.console.pages.look import Look
from polyfleet.console.pages.models import ModelPages
from polyfleet.console.pages.requests import RequestPages
from polyfleet.gateway.auth import Authenticator, check_listen
from polyfleet.gateway.ports.certificate import ServedCertificate
from polyfleet.process.listening import open_socket
from polyfleet.process.tasks import Tasks

STOP_SECONDS = 3
REFRESH_SECONDS = 10.0  # between looks at the certificate's files
log = logging.getLogger(__name__)


def view_of(config: ConsoleConfig) -> FleetView:
    """What there is to see, of whom the configuration names. Raises ConfigError and AuthSetupError."""
    return FleetView(FleetLink(config), Prometheus(config.prometheus_url) if config.prometheus_url else None)


def create_app(config: ConsoleConfig, sessions: Sessions, view: FleetView) -> Starlette:
    """The ASGI application. Starts nothing."""
    look = Look(sessions, view, config)
    secure = bool(config.tls_cert)
    guard = Guard(sessions, look, insecure=config.insecure_no_keys, secure_cookies=secure)
    pages = (
        Entrance(guard, look),
        FleetPages(guard, look, view),
        DeployPages(guard, look, view),
        ModelPages(guard, look, view),
        RequestPages(guard, look, view),
        KeyPages(guard, look, view),
        BenchPages(guard, look, view),
        ChatPages(guard, look, config),
    )

    async def absent(request: Request) -> Response:
        return look.page(request, "absent.html", 404, what=request.url.path)

    static = Mount("/static", StaticFiles(packages=[("polyfleet.console", "static")]))
    health = Route("/healthz", lambda _: PlainTextResponse("ok\n"))
    return Starlette(
        routes=[
            health,
            static,
            *(route for each in pages for route in each.routes()),
            Route("/{path:path}", guard.anybody(absent)),
        ],
        middleware=[Middleware(SecureHeaders), Middleware(GZipMiddleware, minimum_size=1000, compresslevel=5)],
    )


class Console:
    """Listens and shows. Raises ConfigError and AuthSetupError where it can't be as configured."""

    def __init__(self, config: ConsoleConfig) -> None:
        keys_file = Path(config.keys_file) if config.keys_file else None
        check_listen(config.listen, keys_file, insecure=config.insecure_no_keys)
        self._config = config
        self.view = view_of(config)
        sessions = Sessions(Authenticator(keys_file), config.session_seconds)
        self._certificate = ServedCertificate(config.tls_cert, config.tls_key) if config.tls_cert else None
        self._server = self._make_server(create_app(config, sessions, self.view))
        self._tasks = Tasks()
        self._serving: asyncio.Task[None] | None = None

    def _make_server(self, app: Starlette) -> uvicorn.Server:
        settings = uvicorn.Config(
            app,
            root_path=self._config.root_path,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=STOP_SECONDS,
            ssl_certfile=self._config.tls_cert or None,
            ssl_keyfile=self._config.tls_key or None,
        )
        settings.load()
        if self._certificate and settings.ssl:
            self._certificate.use_in(settings.ssl)
        return uvicorn.Server(settings)

    async def start(self) -> None:
        """Listen. Raises ConfigError when the port can't be had."""
        listener = open_socket(self._config.listen, "--listen")
        self.port = listener.getsockname()[1]
        self.view.start()
        self._serving = self._tasks.start(self._server._serve([listener]))
        if self._certificate:
            self._tasks.keep(partial(self._refresh, self._certificate))
        log.info("Console serves.", extra={"address": self._config.listen, "fleet": self._config.fleet})

    async def stop(self) -> None:
        """End streams and pages."""
        await self.view.stop()
        self._server.should_exit = True
        if self._serving:
            await asyncio.wait((self._serving,), timeout=STOP_SECONDS + 1)
        await self._tasks.end()
        await self.view.link.close()

    @staticmethod
    async def _refresh(certificate: ServedCertificate) -> None:
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            certificate.refresh()
