"""An ASGI application on a real port, run by uvicorn in a thread of its own."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn


@contextmanager
def serve_http(app: Any, **settings: Any) -> Iterator[str]:
    """The application's `http://host:port` while it is served; https with uvicorn's settings for that."""
    usual: dict[str, Any] = {"host": "127.0.0.1", "port": 0, "lifespan": "off", "log_level": "error"}
    server = uvicorn.Server(uvicorn.Config(app, **usual | settings))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise RuntimeError("uvicorn did not start")
        time.sleep(0.01)
    host, port = server.servers[0].sockets[0].getsockname()
    try:
        yield f"{'https' if settings.get('ssl_certfile') else 'http'}://{host}:{port}"
    finally:
        server.should_exit = True
        server.force_exit = True
        thread.join(10)
