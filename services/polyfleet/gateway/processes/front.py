"""The one that starts a gateway's processes: replaces those that end, restarts all one by one, shows them as one."""

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress

from prometheus_client import CollectorRegistry, generate_latest

from polyfleet.gateway.processes.child import Child
from polyfleet.gateway.processes.handing import Handing
from polyfleet.gateway.processes.sums import Families, Shown, summed, with_ended
from polyfleet.process.config import ConfigError
from polyfleet.process.tasks import Tasks

READY_SECONDS = 1.0  # between looks whether they can serve
METRICS_SECONDS = 10.0  # between looks at what they have counted, which is lost with one that is killed
AT_ONCE_SECONDS = 5.0  # in the place of one that ended so soon another one waits
PAUSE_SECONDS = (0.2, 10.0)  # first and longest
log = logging.getLogger(__name__)


class Front:
    """Keeps `count` gateways running, each with `arguments`, at these ports, which it closes in the end.

    `serving` and `reason` are theirs together.
    """

    def __init__(self, count: int, arguments: list[str], ports: Sequence[Handing]) -> None:
        self._count, self._arguments, self._ports = count, arguments, ports
        self._children: list[Child] = []
        self._ended: Families = {}
        self._closing = False
        self._restarting = asyncio.Lock()
        self._jobs = Tasks()
        self.serving, self.reason = False, "The gateway is starting."

    async def start(self) -> None:
        """Start all; returns once each listens. Raises ConfigError when one can't."""
        if not all(await asyncio.gather(*(self._start() for _ in range(self._count)))):
            await self.stop()
            raise ConfigError("A gateway process could not start; a line of its own says why.")
        self._jobs.start(self._watch_readiness())
        self._jobs.start(self._watch_hangs())
        self._jobs.start(self._watch_metrics())

    async def restart(self) -> None:
        """Put a new process in the place of each, one after another; what runs in the old ones goes on to its end."""
        async with self._restarting:
            for child in list(self._children):
                if self._closing or not child.staying or not await self._start():
                    log.error("A gateway process is not restarted.", extra={"child": child.process.pid})
                    return
                child.leave()

    def leave(self) -> None:
        """Tell all to drain, or those that do to cut it short."""
        self._closing, self.serving, self.reason = True, False, "The gateway is shutting down."
        for port in self._ports:
            port.close()
        for child in self._children:
            child.leave()

    async def stop(self) -> None:
        """Until all have ended, who were told to; none comes again."""
        self.leave()
        await asyncio.gather(*(child.process.wait() for child in self._children))
        await self._jobs.end()

    async def metrics(self) -> bytes:
        """Those of all, as Prometheus reads them."""
        await self._look()
        registry = CollectorRegistry()
        registry.register(Shown(summed([each.families for each in self._children], self._ended)))
        return generate_latest(registry)

    async def _start(self) -> bool:
        """One more; False when it has ended before it listened."""
        child = await Child.start(self._arguments, self._ports)
        self._children.append(child)
        if not await child.listens():
            await child.end()
            self._children.remove(child)
            return False
        log.info("A gateway process listens.", extra={"child": child.process.pid})
        self._jobs.start(self._keep(child))
        return True

    async def _keep(self, child: Child) -> None:
        """When it ends, and was not told to, put another one in its place."""
        began = time.monotonic()
        status = await child.end()
        self._children.remove(child)
        self._ended = with_ended(self._ended, child.families)
        if self._closing or not child.staying:
            return
        log.error("A gateway process ended; another one comes.", extra={"child": child.process.pid, "status": status})
        pause = PAUSE_SECONDS[0] if time.monotonic() - began < AT_ONCE_SECONDS else 0.0
        while not self._closing:
            await asyncio.sleep(pause)
            with suppress(OSError):
                if self._closing or await self._start():
                    return
            pause = min(max(2 * pause, PAUSE_SECONDS[0]), PAUSE_SECONDS[1])

    async def _watch_readiness(self) -> None:
        while not self._closing:
            answers = await asyncio.gather(*(child.readiness() for child in self._children if child.staying))
            if not self._closing:
                self.serving = any(ready for ready, _ in answers)
                self.reason = "" if self.serving else next((text for _, text in answers), "No process runs.")
            await asyncio.sleep(READY_SECONDS)

    async def _watch_hangs(self) -> None:
        """End those that hang, so that others take their place: their clients can ask again, which now wait."""
        while not self._closing:
            await asyncio.sleep(READY_SECONDS)
            for child in [each for each in self._children if each.hangs()]:
                log.error("A gateway process hangs and is killed.", extra={"child": child.process.pid})
                child.kill()

    async def _watch_metrics(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(METRICS_SECONDS)

    async def _look(self) -> None:
        await asyncio.gather(*(child.look() for child in self._children))
