"""One life of a worker process: bind, lock, register, load, serve, drain, exit.

Exit status: 0 after a drain, 1 when the engine process ended by itself or can't be trusted, 2 when it could not start
(port, lock, token), 3 when the model given at the start can't be served, 128 + n when signal n came twice.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version

from polyfleet.backends import BackendRegistry, BackendUnavailable
from polyfleet.backends.protocol import accelerator_name, split_device
from polyfleet.process.channels import FleetAccess, fleet_access
from polyfleet.process.config import ConfigError
from polyfleet.process.fleet_keys import FleetKeys
from polyfleet.process.listening import ListenError, own_address
from polyfleet.process.metrics import MetricsServer
from polyfleet.process.signals import ignore_hangups, stopping
from polyfleet.process.tasks import Tasks, end
from polyfleet.serving.agent.tunnel import Tunnel
from polyfleet.serving.config import WorkerConfig
from polyfleet.serving.engine_client import LoadError
from polyfleet.serving.health.device_watch import DeviceState, DeviceWatch
from polyfleet.serving.health.watchdog import WatchdogLimits
from polyfleet.serving.lock import LockedError, LockFile
from polyfleet.serving.metrics import serve_metrics
from polyfleet.serving.registration import LAST_REDIAL_SECONDS, Registration
from polyfleet.serving.router import UNAVAILABLE
from polyfleet.serving.server import WorkerServer
from polyfleet.serving.worker import Worker, WorkerRefusal
from polyfleet.transfer.settings import TransferSettings
from polyfleet.tuning.choice import get_backend
from polyfleet.v1 import fleet_pb2 as fleet
from polyfleet.wire.auth import ANY_HOST, AuthSetupError, check_bind, join_host_port, split_host_port
from polyfleet.wire.ids import new_id

log = logging.getLogger(__name__)

DEVICE = "device"  # a source of trouble
ENGINE_ENDED, CANNOT_LOAD, SIGNALLED = 1, 3, 128  # exit statuses
TUNNEL_REDIAL_SECONDS = 0.5  # through a tunnel that may be back
FLUSH_SECONDS = 2.0  # for the last news to reach gateways and Fleet
CLOSE_SECONDS = 1.0


class StartError(Exception):
    """The process can't start. The message is one sentence."""


class WorkerProcess:
    """Owns everything that a worker process holds, and its end.

    `simulated`: it says that it has the accelerator and device of that name, whose engine `engine_module` plays.
    """

    def __init__(self, config: WorkerConfig, simulated: str = "", engine_module: str = "") -> None:
        self._config = config
        info = describe(config, simulated)
        device = f"{info.accelerator}:{info.device_index}" if config.device == "auto" else config.device
        self._worker = Worker(
            info,
            device,
            limits=WatchdogLimits(
                config.canary_interval, config.stall_timeout, config.replace_after, config.load_stall_timeout
            ),
            log_level=config.log_level,
            engine_module=engine_module,
        )
        self._devices = None
        if not simulated:
            self._devices = watch_device(device, config.telemetry_interval, lambda: self._worker.num_devices)
        self._exit_status = 0
        self._signals: list[int] = []
        self._second_signal = asyncio.Event()
        self._registration: Registration | None = None
        self._tunnel: Tunnel | None = None

    async def run(self) -> int:
        """Until told to end; the exit status. Raises StartError."""
        config = self._config
        lock = LockFile(config.lock_file) if config.lock_file else None
        try:
            access = fleet_access(config.fleet_token_file, config.fleet_tls_dir)
            keys = FleetKeys(config.fleet_keys_file) if config.fleet_keys_file else None
            check_bind(config.listen, access.token, keys=keys is not None)
            if config.transfer_listen:
                tls = access.tls.member.name if access.tls else ""
                folder = str(config.fleet_tls_dir) if access.tls else ""
                self._worker.transfers.settings = TransferSettings(config.transfer_listen, folder, tls)
            if lock is not None:
                lock.check()
            if config.join:
                name, process = config.worker_id, self._worker.info().process
                self._tunnel = Tunnel(config.join, access, name, process, self._reached_at)
            server = WorkerServer(self._worker, config.listen, access, keys)
            metrics = serve_metrics(self._worker, config.metrics_listen, self._devices)
            lag = asyncio.create_task(metrics.process.watch_loop())
            with self._handling_signals():  # for as long as the lock names this process to others
                try:
                    self._announce(server, metrics)
                    await self._serve(server, metrics.port, access, lock)
                finally:
                    await self._worker.close()
                    await end(lag)
                    await asyncio.to_thread(metrics.stop)
                    if lock is not None:
                        lock.release()
        except (AuthSetupError, ConfigError, ListenError, LockedError) as error:
            raise StartError(str(error)) from None
        return self._exit_status

    def _claim(self, lock: LockFile | None) -> None:
        """From now on the lock names this process, which whoever reads it can call."""
        if lock is not None:
            info = self._worker.info()
            lock.acquire(self._config.worker_id, info.address, info.metrics_address)

    def _announce(self, server: WorkerServer, metrics: MetricsServer) -> None:
        config = self._config
        address = reachable(config.listen, server.port, config.advertise_host)
        metrics_address = reachable(config.metrics_listen, metrics.port, config.advertise_host)
        if not config.join:
            self._worker.set_addresses(address, metrics_address)
        log.info("Worker %s listens on %s.", config.worker_id, address, extra={"metrics_address": metrics_address})

    def _reached_at(self, address: str, metrics_address: str) -> None:
        """The fleet reaches the worker there from now on."""
        self._worker.set_addresses(address, metrics_address)
        self._worker.revision.advance()

    async def _serve(self, server: WorkerServer, metrics_port: int, access: FleetAccess, lock: LockFile | None) -> None:
        """Serve until the end is due and drained; leaves the server stopped. Raises LockedError."""
        config = self._config
        await server.start()
        try:
            self._claim(lock)
        except LockedError:
            await server.stop(0)
            raise
        if self._devices is not None:
            self._devices.start(self._judged_from_thread(asyncio.get_running_loop()))
        tasks = Tasks()
        tasks.keep(server.follow_health)
        if self._tunnel:
            metrics_address = reachable(config.metrics_listen, metrics_port, "")
            await self._tunnel.open(reachable(config.listen, server.port, ""), metrics_address)
            tasks.start(self._tunnel.run())
        if fleet_address := self._tunnel.fleet_address if self._tunnel else config.fleet:
            devices, pause = self._devices, TUNNEL_REDIAL_SECONDS if self._tunnel else LAST_REDIAL_SECONDS
            states: Callable[[], Sequence[DeviceState]] = (lambda: devices.states) if devices else lambda: ()
            up = self._tunnel.up if self._tunnel else None
            self._registration = Registration(self._worker, fleet_address, access, states, pause, up)
            tasks.keep(self._registration.run)
        if config.load is not None:
            tasks.start(self._load())
        try:
            await self._worker.ending.wait()
            await self._wind_down()
        finally:
            await server.stop(CLOSE_SECONDS)
            if self._devices is not None:
                await asyncio.to_thread(self._devices.stop)
            await tasks.end()

    def _judged_from_thread(self, loop: asyncio.AbstractEventLoop) -> Callable[[str], None]:
        def judged(reason: str) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(self._judge_device, reason)

        return judged

    def _judge_device(self, reason: str) -> None:
        if reason:
            self._worker.suspend(DEVICE, reason)
        else:
            self._worker.resume(DEVICE)

    async def _load(self) -> None:
        assert self._config.load is not None
        try:
            await self._worker.load(self._config.load, lambda *_: None)
        except LoadError as error:
            self._exit_status = CANNOT_LOAD
            self._worker.fail(str(error))
        except WorkerRefusal as error:  # drained or unloaded before it was loaded
            log.warning("The model is not loaded: %s", error)

    async def _wind_down(self) -> None:
        """Let the running sequences finish (or, when it has failed, their errors arrive), within the drain timeout."""
        worker = self._worker
        await self._until_quiet(self._config.drain_timeout, unless_failed=True)
        if worker.failed:
            self._exit_status = self._exit_status or ENGINE_ENDED
        elif len(worker.router):
            log.warning("%d sequences are cut off: the drain timeout has passed.", len(worker.router))
        worker.router.fail_all(UNAVAILABLE, "The worker is stopping.")
        await self._until_quiet(FLUSH_SECONDS)
        if self._second_signal.is_set():
            self._exit_status = SIGNALLED + self._signals[-1]
        elif self._registration is not None:
            await self._registration.leave(FLUSH_SECONDS, dial=worker.failed)

    async def _until_quiet(self, timeout: float, *, unless_failed: bool = False) -> None:
        """Until every sequence has ended and been taken, a second signal, or the timeout."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while not self._worker.router.quiet and not self._second_signal.is_set() and loop.time() < deadline:
            if unless_failed and self._worker.failed:
                return
            await asyncio.sleep(0.02)

    @contextlib.contextmanager
    def _handling_signals(self) -> Iterator[None]:
        """SIGTERM, SIGINT and SIGHUP drain; a second one of the first two ends at once."""
        loop, numbers = asyncio.get_running_loop(), stopping()
        for number in numbers:
            loop.add_signal_handler(number, self._signalled, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _signalled(self, number: int) -> None:
        self._signals.append(number)
        ignore_hangups()
        if len(self._signals) > 1:
            self._second_signal.set()
        log.info("%s received: %s.", signal.Signals(number).name, "draining" if len(self._signals) == 1 else "ending")
        self._worker.drain(leave=True)


def describe(config: WorkerConfig, simulated: str = "") -> fleet.WorkerInfo:
    """What this process is, before it has ports and a model. An absent accelerator shows when a model is loaded.

    `auto` is what this user chose, else the best that is here. `simulated` is taken at its word.
    """
    accelerator, index, device_name = (config.accelerator, 0, simulated) if simulated else find_device(config)
    return fleet.WorkerInfo(
        worker_id=config.worker_id,
        deployment=config.deployment,
        accelerator=accelerator,
        device_name=device_name,
        device_index=index,
        host=socket.gethostname(),
        pid=os.getpid(),
        version=version("polyfleet"),
        own_model=config.load is not None and not config.launched,
        fleet_id=config.fleet_id,
        process=new_id("p"),
        joined=config.join is not None,
        intended_model=config.load.model_name if config.load else "",
        role=config.role,
    )


def find_device(config: WorkerConfig) -> tuple[str, int, str]:
    """Accelerator, index and name of the device that is meant; no name for one that is not there."""
    named = config.device != "auto"
    accelerator, index = split_device(config.device if named else config.accelerator)
    device_name = ""
    with contextlib.suppress(BackendUnavailable, ConfigError):
        backend = get_backend(accelerator)
        accelerator = accelerator_name(backend.type)
        devices = backend.devices()
        if not named and devices:
            index = devices[config.place % len(devices)].index
        device_name = next((each.name for each in devices if each.index == index), "")
    return accelerator, index, device_name


def watch_device(device: str, interval: float, count: Callable[[], int]) -> DeviceWatch | None:
    """Over the devices that the worker computes on; None for an accelerator that nobody knows."""
    accelerator, index = split_device(device)
    try:
        backend = BackendRegistry.known(accelerator)
    except BackendUnavailable:
        return None
    return DeviceWatch(backend, index, interval, count)


def reachable(listen: str, port: int, advertise_host: str) -> str:
    """host:port under which others reach what is bound to `listen`."""
    host = advertise_host or split_host_port(listen)[0]
    return join_host_port(own_address() if host in ANY_HOST else host, port)
