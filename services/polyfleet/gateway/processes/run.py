"""The life of a gateway of several processes, from its ports to its end."""

import asyncio
import logging
import signal
from contextlib import ExitStack

from polyfleet.gateway.config import GatewayConfig
from polyfleet.gateway.http.connection.server import HttpServer
from polyfleet.gateway.http.monitoring import metrics_app
from polyfleet.gateway.ports.doors import Doors
from polyfleet.gateway.processes.front import Front
from polyfleet.gateway.processes.handing import Handing
from polyfleet.process.listening import check_free, open_socket, shared_socket
from polyfleet.process.signals import ignore_hangups, stopping
from polyfleet.process.tasks import Tasks
from polyfleet.wire.auth import join_host_port, split_host_port

MONITORS = 64  # connections of the metrics port
RESTART = signal.SIGUSR2
log = logging.getLogger(__name__)


async def run(config: GatewayConfig, given: list[str]) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP, then drain all; a second one cuts that short. `given` is the command line.

    Raises ConfigError.
    """
    told, loop = asyncio.Queue[int](), asyncio.get_running_loop()
    for number in (*stopping(), RESTART):
        loop.add_signal_handler(number, told.put_nowait, number)
    with ExitStack() as held:
        listens = {"--grpc-listen": config.grpc_listen, "--http-listen": config.http_listen}
        ports = {flag: Handing(open_socket(address, flag)) for flag, address in listens.items()}
        addresses = {flag: _with_port(listens[flag], port.port) for flag, port in ports.items()}
        if config.peer_listen:
            addresses["--peer-listen"] = _reserved(config.peer_listen, "--peer-listen", held)
        words = [word for pair in addresses.items() for word in pair]
        front = Front(config.processes, [*given, *words, "--metrics-listen", "127.0.0.1:0"], list(ports.values()))
        doors = Doors(MONITORS, MONITORS, lambda _: None)
        app = metrics_app(front, front.metrics)
        monitoring = HttpServer(app, config.metrics_listen, "--metrics-listen", config.limits, doors)
        await front.start()
        await monitoring.start()
        said = {"grpc_port": ports["--grpc-listen"].port, "http_port": ports["--http-listen"].port}
        log.info("The gateway's processes listen.", extra={**said, "metrics_port": monitoring.port})
        restarts = Tasks()
        while (await told.get()) == RESTART:
            restarts.start(front.restart())
        ignore_hangups()
        ending = asyncio.create_task(front.stop())
        while not ending.done():
            another = asyncio.create_task(told.get())
            await asyncio.wait({ending, another}, return_when=asyncio.FIRST_COMPLETED)
            if another.done():
                front.leave()
            another.cancel()
        await ending
        await monitoring.stop()


def _reserved(address: str, flag: str, held: ExitStack) -> str:
    """The address, with a real port, which nobody but the processes gets while it is held. Raises ConfigError."""
    check_free(address, flag)
    found = held.enter_context(shared_socket(address, flag))
    return _with_port(address, found.getsockname()[1])


def _with_port(address: str, port: int) -> str:
    return join_host_port(split_host_port(address)[0], port)
