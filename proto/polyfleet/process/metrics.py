"""What every process of Polyfleet shows of itself beside its own metrics, and /metrics. Needs prometheus_client.

polyfleet_build_info{version, python} 1       what runs
polyfleet_event_loop_lag_seconds              how late the event loop is, a histogram
process_*, python_gc_*                        the usual ones of prometheus_client, where the system has /proc
"""

import asyncio
import platform
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from types import MappingProxyType
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    GCCollector,
    Histogram,
    ProcessCollector,
    make_wsgi_app,
    start_http_server,
)
from prometheus_client.registry import Collector

LOOK_SECONDS = 0.5
LAG_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


class ProcessMetrics:
    """Registers `polyfleet_*` at `registry`; `others` is a registry of its own with those of the interpreter."""

    def __init__(self, registry: CollectorRegistry) -> None:
        info = Gauge("polyfleet_build_info", "What runs; always 1.", ("version", "python"), registry=registry)
        info.labels(version("polyfleet"), platform.python_version()).set(1)
        self._lag = Histogram(
            "polyfleet_event_loop_lag_seconds", "How late the event loop is.", buckets=LAG_SECONDS, registry=registry
        )
        self.others = CollectorRegistry()
        ProcessCollector(registry=self.others)
        GCCollector(registry=self.others)

    async def watch_loop(self) -> None:
        """Measure how late this event loop is, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LOOK_SECONDS
            await asyncio.sleep(LOOK_SECONDS)
            self._lag.observe(max(0.0, loop.time() - due))


class MetricsServer:
    """`/metrics` over HTTP on a thread of its own; `port` is the real one, `process` this process's own metrics."""

    def __init__(
        self,
        host: str,
        port: int,
        *collectors: Collector,
        around: Callable[[Any], Any] = lambda metrics: metrics,
        health: Mapping[str, Callable[[], bool]] = MappingProxyType({}),
    ) -> None:
        """Bind and serve; `around` may put more paths round the WSGI application, `health` has questions by path: for
        probes, which can't speak TLS. Raises OSError.
        """
        registry = CollectorRegistry()
        for each in collectors:
            registry.register(each)
        self.process = ProcessMetrics(registry)
        registry.register(self.process.others)
        self._server, self._thread = start_http_server(port, host, registry)
        self._server.set_app(_with_health(around(make_wsgi_app(registry)), health))
        self.port = int(self._server.server_port)

    def stop(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _with_health(others: Any, health: Mapping[str, Callable[[], bool]]) -> Any:
    """A WSGI application: 200 or 503 at the paths of `health`, `others` everywhere else."""

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if (check := health.get(environ["PATH_INFO"])) is None:
            return others(environ, start_response)  # type: ignore[no-any-return]
        try:
            well = check()
        except Exception:  # whatever keeps it from answering
            well = False
        start_response("200 OK" if well else "503 Service Unavailable", [("Content-Type", "text/plain")])
        return [b"ok\n" if well else b"no\n"]

    return application
