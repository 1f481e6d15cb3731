"""One gateway process: every part made and joined here, started, drained, stopped."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from polyfleet.gateway.agents.relay import AgentRelay
from polyfleet.gateway.auth import Authenticator, check_listen
from polyfleet.gateway.begins import Begins
from polyfleet.gateway.config import GatewayConfig
from polyfleet.gateway.errors import Unavailable
from polyfleet.gateway.fetching.fetcher import ImageFetcher
from polyfleet.gateway.fetching.hosts import ImageHost
from polyfleet.gateway.fleet.peer_server import PeerServer
from polyfleet.gateway.fleet.peers import Peers, PeerService
from polyfleet.gateway.fleet.scheduler_link import SchedulerLink
from polyfleet.gateway.fleet.tokenizers import Tokenizers
from polyfleet.gateway.fleet.view import FleetView
from polyfleet.gateway.grpc.server import GrpcServer
from polyfleet.gateway.grpc.workers import WorkerDialler
from polyfleet.gateway.health import Health
from polyfleet.gateway.http import create_app, create_metrics_app
from polyfleet.gateway.http.connection.server import HttpServer
from polyfleet.gateway.ledger import Ledger
from polyfleet.gateway.metrics import Metrics
from polyfleet.gateway.parts import GatewayParts
from polyfleet.gateway.ports.certificate import ServedCertificate
from polyfleet.gateway.ports.doors import Doors
from polyfleet.gateway.ports.taking import Source
from polyfleet.gateway.prompts.prompts import Prompts
from polyfleet.gateway.recent import RecentRequests
from polyfleet.gateway.request.accounts import Accounts
from polyfleet.gateway.request.generation import Generation
from polyfleet.gateway.request.models import Models
from polyfleet.gateway.request.queue import RETRY_SECONDS, RequestQueue
from polyfleet.gateway.tenants.fairness import FairOrder
from polyfleet.gateway.tenants.quotas import Quotas
from polyfleet.gateway.tenants.reporter import UsageReporter
from polyfleet.gateway.tenants.usage import UsageBook
from polyfleet.placement.place import place
from polyfleet.process.channels import FleetAccess, fleet_access
from polyfleet.process.fleet_keys import FleetKeys
from polyfleet.process.listening import parse_address
from polyfleet.process.refusing import Objection
from polyfleet.process.servers import connection_share, raise_descriptor_limit
from polyfleet.process.tasks import Tasks
from polyfleet.process.within import Within
from polyfleet.wire.auth import fleet_objection
from polyfleet.wire.ids import new_id

HEALTH_SECONDS = 1.0  # between looks at what no change of the fleet tells
MONITORS = 64  # connections of the metrics port
CERTIFICATE_SECONDS = 10.0  # between looks at its files
LEAVE_SECONDS = 0.5  # for requests that are on their way over connections that are there
STOP_SECONDS = 1.0  # for calls whose end is on its way to the client
log = logging.getLogger(__name__)


class CallersPorts(NamedTuple):
    """Where their connections come from."""

    grpc: Source
    http: Source


class Gateway:
    """Make it inside the event loop that it will live in: that opens its ports.

    `handed`: one of several processes gets its callers' connections from the first one. Raises ConfigError or
    AuthSetupError, each one sentence for the operator.
    """

    def __init__(self, config: GatewayConfig, handed: CallersPorts | None = None) -> None:
        _check(config)
        self._handed = handed
        self._certificate = ServedCertificate(config.tls_cert, config.tls_key) if config.tls_cert else None
        limits = config.limits
        gateway_id, access = new_id("gw"), fleet_access(config.fleet_token_file, config.fleet_tls_dir)
        self.ledger, self.metrics, self._begins = Ledger(), Metrics(), Begins()
        self.view = FleetView(gateway_id, WorkerDialler(access), self.metrics, config.placement)
        self._fleet = SchedulerLink(config.fleet, gateway_id, access)
        self._peers = Peers(config.peers, access)
        self._tokenizers = Tokenizers(self._tokenizer, self.view.changed, _prompts_maker(config, self.metrics))
        authenticator = Authenticator(Path(config.keys_file) if config.keys_file else None)
        fair = FairOrder(lambda: authenticator.tenants, lambda: authenticator.num_tenants)
        queue = RequestQueue(self.view, partial(place, policy=config.placement), limits, self.metrics, fair)
        accounts = self._accounts(config, authenticator)
        books = accounts.quotas, accounts.usage, accounts.recent
        self._reporter = UsageReporter(self._fleet.report_usage, *books, self.metrics.demand)
        self._generation = Generation(
            Models(self.view, self._tokenizers, queue, limits, own_defaults=config.generation_config == "auto"),
            queue,
            limits,
            accounts,
            tool_parser=config.tool_parser,
        )
        self._health = Health(self.view.num_ready, self.view.reason)
        parts = GatewayParts(self._generation, authenticator, self.metrics, self._health, limits, self._begins)
        share = connection_share(raise_descriptor_limit(), limits.max_connections, ports=2)
        self.http = self._http(parts, config, share)
        self.relay = AgentRelay(config.fleet)
        self.grpc = self._grpc(parts, config, share, _to_agents(config, access.token))
        self.monitoring = self._monitoring(config)
        self.peers = self._peer_server(config, access) if config.peer_listen else None
        self._drain_seconds = limits.drain_seconds
        self._tasks = Tasks()

    def _accounts(self, config: GatewayConfig, authenticator: Authenticator) -> Accounts:
        return Accounts(
            self.ledger,
            self.metrics,
            config.limits.max_request_seconds,
            objectives=config.objectives,
            quotas=Quotas(lambda: authenticator.tenants, config.processes),
            usage=UsageBook(),
            recent=RecentRequests(),
            behind=self._begins.behind,
        )

    def _http(self, parts: GatewayParts, config: GatewayConfig, share: int) -> HttpServer:
        limits = config.limits
        return HttpServer(
            create_app(parts, config.cors_origins),
            config.http_listen,
            "--http-listen",
            limits,
            Doors(share, limits.max_connections_per_address, partial(self.metrics.refused, "http")),
            certificate=self._certificate,
            begins=self._begins,
            source=self._handed.http if self._handed else None,
        )

    def _grpc(self, parts: GatewayParts, config: GatewayConfig, share: int, to_agents: Objection) -> GrpcServer:
        return GrpcServer(
            parts,
            config,
            certificate=self._certificate,
            max_connections=share,
            relay=self.relay,
            agents=to_agents,
            source=self._handed.grpc if self._handed else None,
        )

    def _monitoring(self, config: GatewayConfig) -> HttpServer:
        doors = Doors(MONITORS, MONITORS, partial(self.metrics.refused, "metrics"))
        app = create_metrics_app(self._health, self.metrics)
        return HttpServer(app, config.metrics_listen, "--metrics-listen", config.limits, doors)

    def _peer_server(self, config: GatewayConfig, access: FleetAccess) -> PeerServer:
        keys = FleetKeys(Path(config.fleet_keys_file)) if config.fleet_keys_file else None
        service = PeerService(self.view.told, self._tokenizers.document)
        return PeerServer(service, config.peer_listen, access, keys, shared=self._handed is not None)

    async def start(self) -> None:
        """Watch the fleet and serve."""
        self.view.changed.add(lambda: self.metrics.keep_workers(self.view.sessions))
        self.view.changed.add(lambda: self.metrics.demand.keep(self.view.revisions()))
        self.metrics.watch_connections("http", lambda: len(self.http.doors))
        self.metrics.watch_connections("grpc", lambda: len(self.grpc.connections))
        self.metrics.watch_connections("metrics", lambda: len(self.monitoring.doors))
        if self._certificate:
            self.metrics.watch_certificate(self._certificate)
        self.metrics.watch_scheduler(lambda: self._fleet.connected)
        self.metrics.watch_sessions("connected", lambda: self.view.num_sessions(connected=True))
        self.metrics.watch_sessions("connecting", lambda: self.view.num_sessions(connected=False))
        jobs = (
            lambda: self._fleet.watch(self.view.apply),
            lambda: self._peers.follow(lambda: not self._fleet.connected, self.view.offer),
            self._follow_health,
            self._follow_certificate,
            self.metrics.process.watch_loop,
            self._reporter.run,
            self.grpc.connections.watch,
        )
        for job in jobs:
            self._tasks.keep(job)
        await self.monitoring.start()
        if self.peers:
            await self.peers.start()
        await self.grpc.start()
        await self.http.start()
        ports = {"grpc_port": self.grpc.port, "http_port": self.http.port, "metrics_port": self.monitoring.port}
        log.info("Gateway listens.", extra=ports)

    async def _tokenizer(self, content_hash: str) -> bytes:
        """Assets of another gateway while the scheduler is away. Raises AssetError or grpc.aio.AioRpcError."""
        document = None if self._fleet.connected else await self._peers.tokenizer(content_hash)
        return document or await self._fleet.tokenizer(content_hash)

    async def _follow_health(self) -> None:
        """Keep gRPC's health service true."""
        changed = asyncio.Event()
        self.view.changed.add(changed.set)
        while True:
            changed.clear()
            await self.grpc.show_health()
            with contextlib.suppress(asyncio.TimeoutError), Within(HEALTH_SECONDS):
                await changed.wait()

    async def _follow_certificate(self) -> None:
        """Serve a renewed certificate."""
        while self._certificate:
            await asyncio.sleep(CERTIFICATE_SECONDS)
            self._certificate.refresh()

    async def drain(self) -> None:
        """Not ready any more; new requests are turned away, running ones get `drain_seconds`."""
        self._health.draining = True
        await self.grpc.show_health()
        if self._handed:  # whoever comes now goes to another process
            self.http.leave()
            self.grpc.leave(self._drain_seconds + STOP_SECONDS)
            await asyncio.sleep(LEAVE_SECONDS)
            self.http.let_go()
        self._generation.close()
        log.info("Gateway drains.", extra={"running": self.ledger.running})
        if not await self._generation.wait_until_idle(self._drain_seconds):
            log.warning("Requests did not end in time.", extra={"running": self.ledger.running})

    async def stop(self) -> None:
        """End what still runs with UNAVAILABLE; close all ports and every session."""
        self._generation.close()
        self._generation.abort(Unavailable("The gateway is shutting down.", retry_after=RETRY_SECONDS))
        await self._generation.wait_until_idle(STOP_SECONDS)
        if self.peers:
            await self.peers.stop()
        self.relay.close()
        self.http.leave()
        if len(self.http.doors):  # who came at the last moment is told that it ends
            await asyncio.sleep(LEAVE_SECONDS)
        self.http.let_go()
        await asyncio.gather(self.grpc.stop(STOP_SECONDS), self.http.stop(), self.monitoring.stop())
        self._begins.rush()
        await self._tasks.end()
        with contextlib.suppress(asyncio.TimeoutError), Within(STOP_SECONDS):
            await self._reporter.report()
        await self._tokenizers.close()
        await self.view.close()
        self.ledger.check()


def _prompts_maker(config: GatewayConfig, metrics: Metrics) -> Callable[[bytes], Prompts]:
    """Of a tokenizer assets document; all of them fetch images together."""
    limits, hosts = config.limits, [ImageHost.of(each) for each in config.image_hosts]
    images = ImageFetcher(hosts, limits.max_image_bytes, limits.image_seconds, metrics.image_fetches)
    special = config.allow_special_tokens_in_content
    return partial(Prompts, limits=limits, fetch=images.fetch, open_contents=special)


def _to_agents(config: GatewayConfig, token: str | None) -> Objection:
    """What is said against calls of agents. Raises ConfigError."""
    if config.fleet_keys_file:
        return FleetKeys(Path(config.fleet_keys_file)).objection
    return partial(fleet_objection, config.grpc_listen, token)


def _check(config: GatewayConfig) -> None:
    parse_address(config.metrics_listen, "--metrics-listen")
    if config.peer_listen:
        parse_address(config.peer_listen, "--peer-listen")
    for peer in config.peers:
        parse_address(peer, "--peer")
    keys_file = Path(config.keys_file) if config.keys_file else None
    for address, flag in ((config.grpc_listen, "--grpc-listen"), (config.http_listen, "--http-listen")):
        parse_address(address, flag)
        check_listen(address, keys_file, insecure=config.insecure_no_keys)
