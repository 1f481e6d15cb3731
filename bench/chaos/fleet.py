"""A whole fleet of real processes on loopback, each reached over a link: scheduler, gateways, simulated workers."""

import asyncio
import shutil
import tempfile
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import MappingProxyType, TracebackType

import yaml
from bench.chaos.clock import Clocks
from bench.chaos.disk import SmallDisk
from bench.chaos.link import Link
from bench.chaos.parts import Part
from bench.soaking.stack import StackError
from bench.soaking.streams import Caller

from polyfleet.process.listening import free_addresses

MODEL = "simulated"
BEHIND_LINKS = "127.0.0.2"  # where gateways reach workers: the links listen there, on the workers' own ports
STEP_SECONDS = 0.02
STEPS = {"prefill_tokens_per_second": 1e6, "sequence_seconds": 1e-5}
LIMITS = {"queue_timeout": 60.0, "drain_seconds": 60.0, "max_queued": 4096}
PATIENCE_SECONDS = 120.0
POLL_SECONDS = 0.1


class ChaosFleet:
    """`async with ChaosFleet(workers=3, gateways=2) as fleet`: all of it up and ready.

    `links` are named after what they lead to: `worker-0` (from gateways), `scheduler` (from gateways and workers).
    With `host_faults` the processes' clocks can be set (`clocks`), and the scheduler's disk, where this user may mount
    one, is small (`disk`). Its folder goes when it ends, but with an error or with `keep_folder`: then its logs
    are to be read.
    """

    def __init__(
        self,
        workers: int = 3,
        gateways: int = 2,
        *,
        step_seconds: float = STEP_SECONDS,
        max_sequences: int = 64,
        section: Mapping[str, object] = MappingProxyType({}),
        api_key: str = "",
        host_faults: bool = False,
    ) -> None:
        """`section` is more of the gateways' configuration, `api_key` what `callers` show."""
        self.folder = Path(tempfile.mkdtemp(prefix="polyfleet-chaos-"))
        self.keep_folder = False
        self.links: dict[str, Link] = {}
        self.callers: list[Caller] = []
        self.clocks: Clocks | None = None
        self.disk: SmallDisk | None = None
        self._host_faults = host_faults
        self._api_key = api_key
        self._exits = AsyncExitStack()
        fleet, metrics, known_as, *rest = free_addresses(3 + 4 * gateways + workers)
        self.gateway_addresses = [
            tuple(rest[4 * each : 4 * each + 3]) for each in range(gateways)
        ]  # gRPC, HTTP, metrics
        self._peers = rest[3 : 4 * gateways : 4]
        self.scheduler_address = fleet  # behind its link
        self._link_targets = {"scheduler": (fleet, known_as)}
        self._state = self.folder / "state"
        self.scheduler = Part("scheduler", "bench.chaos.scheduler", [fleet, metrics, str(self._state)], self.folder)
        self.gateways = [self._gateway(each, known_as) for each in range(gateways)]
        self.worker_addresses = rest[4 * gateways :]  # behind their links
        self.workers = [self._worker(*each, known_as) for each in enumerate(self.worker_addresses)]
        group = {"name": "worker", "accelerator": "cuda", "workers": workers, "max_sequences": max_sequences}
        group |= {"steps": STEPS | {"step_seconds": step_seconds}, "kv_tokens": 400_000}
        (self.folder / "fleet.yaml").write_text(yaml.safe_dump({"groups": [group]}))
        settings = {"limits": LIMITS, "log_level": "warning", **section}
        (self.folder / "gateway.yaml").write_text(yaml.safe_dump({"gateway": settings}))

    def _gateway(self, number: int, fleet: str) -> Part:
        grpc, http, metrics = self.gateway_addresses[number]
        flags = {"grpc-listen": grpc, "http-listen": http, "metrics-listen": metrics, "fleet": fleet}
        arguments = [f"--{name}={value}" for name, value in flags.items()]
        arguments.append(f"--config={self.folder}/gateway.yaml")
        arguments += [f"--peer-listen={self._peers[number]}", *(f"--peer={each}" for each in self._peers)]
        return Part(f"gateway-{number}", "polyfleet.gateway", arguments, self.folder)

    def _worker(self, number: int, address: str, fleet: str) -> Part:
        name = f"worker-{number}"
        self._link_targets[name] = (address, f"{BEHIND_LINKS}:{address.rpartition(':')[2]}")
        flags = {"only": name, "listen": address, "advertise-host": BEHIND_LINKS, "fleet": fleet}
        arguments = [f"--{key}={value}" for key, value in flags.items()]
        return Part(
            name, "polyfleet.cli", ["simulate-workers", str(self.folder / "fleet.yaml"), *arguments], self.folder
        )

    @property
    def parts(self) -> list[Part]:
        """All of them."""
        return [self.scheduler, *self.workers, *self.gateways]

    async def __aenter__(self) -> "ChaosFleet":
        for name, (target, listen) in self._link_targets.items():
            self.links[name] = await self._exits.enter_async_context(Link(target, listen))
        if self._host_faults:
            self._prepare_host()
        for part in self.parts:
            part.start()
            self._exits.callback(part.kill)
        for grpc, http, _ in self.gateway_addresses:
            self.callers.append(await self._exits.enter_async_context(Caller(grpc, http, self._api_key)))
        try:
            await self.whole()
        except BaseException:
            await self._exits.aclose()
            raise
        return self

    def _prepare_host(self) -> None:
        self.clocks = Clocks(self.folder)
        for part in self.parts:
            part.environ = self.clocks.environ(part.name)
        with suppress(OSError):
            self.disk = self._exits.enter_context(SmallDisk(self._state))
            self.scheduler.prefix = self.disk.command

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._exits.aclose()
        if not (isinstance(error, Exception) or self.keep_folder):
            shutil.rmtree(self.folder)

    async def whole(self) -> None:
        """Everything runs, and every gateway has every worker. Raises StackError when that does not come."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        for part in self.parts:
            part.start()
        for caller in self.callers:
            while (ready := await caller.ready_workers()) < len(self.workers):
                if time.monotonic() > deadline:
                    ends = "\n".join(f"{each.name} {each.runs}: {each.said()}" for each in self.parts)
                    raise StackError(f"only {ready} workers are ready again: {ends}")
                await asyncio.sleep(POLL_SECONDS)
