"""The HTTP port: uvicorn inside the gateway's own event loop."""

import asyncio
import contextlib
import ssl
from collections.abc import Iterator

import uvicorn

from polyfleet.gateway.certificate import ServedCertificate
from polyfleet.gateway.config import GatewayConfig
from polyfleet.gateway.http.app import create_app
from polyfleet.gateway.listen import open_socket
from polyfleet.gateway.state import GatewayState


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the process's own business."""
        yield


class HttpServer:
    """Binds when made: raises ListenError when the port can't be had."""

    def __init__(self, state: GatewayState, config: GatewayConfig, certificate: ServedCertificate | None) -> None:
        def tls_context(*_: object) -> ssl.SSLContext:
            assert certificate is not None
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            certificate.use_in(context)
            return context

        self._socket = open_socket(config.http_listen, "--http-listen")
        self.port: int = self._socket.getsockname()[1]
        self._server = _Server(
            uvicorn.Config(
                create_app(state),
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=1,
                ssl_context_factory=tls_context if certificate else None,
            )
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Take requests."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Take no requests; those that run get a second."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        self._socket.close()
