"""Scheduler: store, registry, feed, controller, Fleet server and metrics, wired together. Free of Ray."""

import asyncio
import logging
import secrets
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from polyfleet.process.channels import fleet_access
from polyfleet.process.decoding import DecodeInterceptor
from polyfleet.process.fleet_keys import FleetKeys
from polyfleet.process.metrics import MetricsServer
from polyfleet.process.refusing import RefusingInterceptor
from polyfleet.process.servers import connection_share, raise_descriptor_limit, server_options
from polyfleet.process.tasks import Tasks, end
from polyfleet.scheduler.auth import FleetAuth
from polyfleet.scheduler.cluster.cluster import Cluster
from polyfleet.scheduler.cluster.kubernetes import Replicas
from polyfleet.scheduler.config import SchedulerConfig, fleet_id, pool_wishes
from polyfleet.scheduler.deployments.controller import Controller
from polyfleet.scheduler.deployments.pools import PoolScaler
from polyfleet.scheduler.fleet.demand import Demand
from polyfleet.scheduler.fleet.registry import Registry
from polyfleet.scheduler.fleet.snapshot_feed import SnapshotFeed
from polyfleet.scheduler.fleet_service import FleetService
from polyfleet.scheduler.metrics import SchedulerMetrics, SchedulerState, serve_metrics
from polyfleet.scheduler.operations.benchmarks import BenchmarkDesk
from polyfleet.scheduler.store import STATE_NAME, Store
from polyfleet.v1 import fleet_pb2_grpc
from polyfleet.wire.auth import check_bind, split_host_port
from polyfleet.wire.limits import GRPC_MAX_MESSAGE_BYTES, MAX_SNAPSHOT_BYTES

SERVICE_NAME = "polyfleet.v1.Fleet"
BIND_SECONDS = 30.0  # the port of a scheduler that was just killed may take a moment
SCRAPE_SECONDS = 5.0
CLOSE_SECONDS = 1.0
_HEALTH: Any = health  # stubs, where they are installed, lack its aio
log = logging.getLogger(__name__)


class Scheduler:
    """One life of the scheduler. `start` makes one that serves; `stop` ends it and leaves the workers alone."""

    def __init__(self, config: SchedulerConfig, cluster: Cluster) -> None:
        """Opens the state. Raises StoreError, AuthSetupError and ConfigError."""
        self._config = config
        access = fleet_access(config.fleet_token_file, config.fleet_tls_dir)
        token, self._tls = access.token, access.tls
        fleet_keys = FleetKeys(Path(config.fleet_keys_file)) if config.fleet_keys_file else None
        check_bind(config.listen, token, keys=fleet_keys is not None)
        self._store = Store(config.state_path / STATE_NAME)
        self._registry = Registry(secrets.token_hex(8), pool_wishes(config), self._store.begin_life())
        self._registry.set_deployments(self._store.deployments())
        self._feed = SnapshotFeed(self._registry)
        demand = Demand()
        self._controller = Controller(
            config, self._store, self._registry, self._feed, cluster, access=access, demand=demand
        )
        keys_file = Path(config.keys_file) if config.keys_file else None
        auth = FleetAuth(config.listen, token, keys_file, fleet_keys)
        self._server = self._make_server(auth)
        self._health = _HEALTH.aio.HealthServicer()
        self._benchmarks = BenchmarkDesk(config)
        service = FleetService(
            self._store,
            self._registry,
            self._feed,
            self._controller,
            loopback=token is None and fleet_keys is None,
            foreign_worker=auth.foreign_worker,
            fleet_id=fleet_id(config.state_path),
            keys_file=keys_file,
            access=access,
            demand=demand,
        )
        service.benchmarks = self._benchmarks
        self._controller.told_apart = service.adapters.busy
        fleet_pb2_grpc.add_FleetServicer_to_server(service, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._metrics: MetricsServer | None = None
        self._pools = PoolScaler(config.pools, Replicas(), self._registry, demand)
        self._loop: asyncio.Task[None] | None = None
        self._background = Tasks()

    def _make_server(self, auth: FleetAuth) -> Any:
        admit = self._tls.admit if self._tls else None
        interceptors: Any = [RefusingInterceptor(auth.objection), DecodeInterceptor(admit=admit)]
        options = server_options(
            max_receive_bytes=GRPC_MAX_MESSAGE_BYTES,
            max_send_bytes=MAX_SNAPSHOT_BYTES,
            min_ping_seconds=5,  # workers and gateways may ping this often
            max_connections=connection_share(raise_descriptor_limit()),
        )
        return grpc.aio.server(options=options, interceptors=interceptors)

    @property
    def epoch(self) -> str:
        """Names this life of the scheduler."""
        return self._registry.epoch

    async def start(self) -> None:
        """Bind, serve, and look after the fleet in the background. Raises OSError when a port stays taken."""
        metrics = SchedulerMetrics(self._read_from_thread(asyncio.get_running_loop()))
        await _retry_bind(self._bind_fleet)
        await _retry_bind(lambda: self._bind_metrics(metrics))
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        await self._server.start()
        self._loop = self._background.start(self._controller.run())
        self._background.keep(self._pools.run)
        self._background.start(self._serve_once_open())
        log.info("The scheduler listens on %s.", self._config.listen, extra={"epoch": self.epoch})

    async def _serve_once_open(self) -> None:
        """Say SERVING once Ray has answered: until then nothing that anybody wishes is done."""
        await self._controller.opened.wait()
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)

    async def _set_health(self, status: int) -> None:
        for name in ("", SERVICE_NAME):
            await self._health.set(name, status)

    def _bind_fleet(self) -> None:
        try:
            if self._tls:
                self._server.add_secure_port(self._config.listen, self._tls.server_credentials())
            else:
                self._server.add_insecure_port(self._config.listen)
        except RuntimeError as error:
            raise OSError(f"{self._config.listen} can't be bound") from error

    def _bind_metrics(self, metrics: SchedulerMetrics) -> None:
        host, port = split_host_port(self._config.metrics_listen)
        loop = asyncio.get_running_loop()
        self._metrics = serve_metrics(host, int(port), metrics, lambda: self._serves(loop))
        self._background.keep(self._metrics.process.watch_loop)

    def _serves(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether Ray has answered and this event loop does; for other threads."""

        async def read() -> bool:
            return self._controller.opened.is_set()

        return asyncio.run_coroutine_threadsafe(read(), loop).result(SCRAPE_SECONDS)

    def _read_from_thread(self, loop: asyncio.AbstractEventLoop) -> Any:
        async def read() -> SchedulerState:
            controller = self._controller
            return SchedulerState(
                self._registry.snapshot(), self._feed.watchers, controller.reports, controller.num_nodes
            )

        return lambda: asyncio.run_coroutine_threadsafe(read(), loop).result(SCRAPE_SECONDS)

    async def shutdown(self, grace: float) -> None:
        """Stop the whole fleet in good order, workers first; the Fleet service answers until they have left."""
        await self._end_loop()
        await self._controller.shutdown(grace)
        await self.stop()

    async def stop(self) -> None:
        """Stop serving and close the state."""
        await self._end_loop()
        await self._benchmarks.close()
        await self._health.enter_graceful_shutdown()
        await self._background.end()
        closing = [self._server.stop(CLOSE_SECONDS)]
        if self._metrics:
            closing.append(asyncio.to_thread(self._metrics.stop))
        await asyncio.gather(*closing)
        self._store.close()

    async def _end_loop(self) -> None:
        if self._loop:
            await end(self._loop)
            self._loop = None


async def _retry_bind(bind: Any) -> None:
    """Call `bind` until it raises no OSError, for BIND_SECONDS; then let the error through."""
    deadline = asyncio.get_running_loop().time() + BIND_SECONDS
    while True:
        try:
            bind()
            return
        except OSError:
            if asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(0.2)
