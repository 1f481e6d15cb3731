"""Faults by name, each a context: the fault holds inside it, and what it broke is mended behind it.

Several may hold at once: `async with FAULTS["kill-worker"](fleet, rng), FAULTS["cut-scheduler"](fleet, rng): …`.
"""

import random
import resource
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

import psutil
from bench.chaos.fleet import ChaosFleet
from bench.chaos.link import DOWN, UP, Link
from bench.chaos.network import dropped, narrowed
from bench.chaos.parts import Part
from bench.soaking.stack import StackError

Fault = Callable[[ChaosFleet, random.Random], AbstractAsyncContextManager[None]]
SLOW_BYTES_PER_SECOND = 20_000.0  # a worker's heartbeat takes about 10 ms


@asynccontextmanager
async def _killed(part: Part) -> AsyncIterator[None]:
    part.kill()
    yield
    part.start()


@asynccontextmanager
async def _engine_killed(part: Part) -> AsyncIterator[None]:
    with suppress(psutil.NoSuchProcess):  # it loads just now
        part.engine.kill()
    yield


@asynccontextmanager
async def _stopped(part: Part, *, engine: bool = False) -> AsyncIterator[None]:
    """As with SIGSTOP, the process hangs; a worker's engine and the worker itself are two processes."""
    with suppress(psutil.NoSuchProcess):
        process = part.engine if engine else part.process
        process.suspend()
        try:
            yield
        finally:
            with suppress(psutil.NoSuchProcess):  # who finds it hanging may end it
                process.resume()
        return
    yield


@asynccontextmanager
async def _worsened(link: Link, worsen: Callable[[Link], None]) -> AsyncIterator[None]:
    worsen(link)
    try:
        yield
    finally:
        link.heal()


@asynccontextmanager
async def _gateway_killed(fleet: ChaosFleet, rng: random.Random) -> AsyncIterator[None]:
    """Its own streams are told that they broke; nobody else notices."""
    number = rng.randrange(len(fleet.gateways))
    fleet.callers[number].forgiven = True
    async with _killed(fleet.gateways[number]):
        yield
    await fleet.whole()
    fleet.callers[number].forgiven = False


@asynccontextmanager
async def _gateway_born(fleet: ChaosFleet, rng: random.Random) -> AsyncIterator[None]:
    """One starts anew while nobody hears the scheduler: it learns the fleet from a peer, where there is one."""
    async with _worsened(fleet.links["scheduler"], Link.silence):
        async with _gateway_killed(fleet, rng):
            pass
        yield


@asynccontextmanager
async def _clock_set(fleet: ChaosFleet, part: Part, seconds: int) -> AsyncIterator[None]:
    """Its time of day jumps, and jumps back."""
    if fleet.clocks is None:
        raise StackError("A fleet without host_faults has no clocks to set.")
    fleet.clocks.set(part.name, seconds)
    try:
        yield
    finally:
        fleet.clocks.set(part.name, 0)


@asynccontextmanager
async def _disk_full(fleet: ChaosFleet) -> AsyncIterator[None]:
    """The scheduler's disk has no room, or, where it has no disk of its own, no file of its process may grow."""
    if fleet.disk is not None:
        fleet.disk.fill()
        try:
            yield
        finally:
            fleet.disk.clear()
        return
    process = fleet.scheduler.process
    before = process.rlimit(resource.RLIMIT_FSIZE)
    process.rlimit(resource.RLIMIT_FSIZE, (1, before[1]))
    try:
        yield
    finally:
        with suppress(psutil.NoSuchProcess):
            process.rlimit(resource.RLIMIT_FSIZE, before)


NETWORKS: Mapping[str, Callable[[Link], None]] = {
    "cut": Link.cut,
    "slow": lambda link: link.slow(SLOW_BYTES_PER_SECOND),
    "silent": Link.silence,
    "deaf": lambda link: link.silence(UP),
    "mute": lambda link: link.silence(DOWN),
    "half-open": Link.half_open,
}


def _network(name: str, to: str) -> Fault:
    worsen = NETWORKS[name]

    def fault(fleet: ChaosFleet, rng: random.Random) -> AbstractAsyncContextManager[None]:
        behind = rng.choice(fleet.workers).name if to == "worker" else to
        return _worsened(fleet.links[behind], worsen)

    return fault


def _dropped(fleet: ChaosFleet, name: str) -> AbstractAsyncContextManager[None]:
    return dropped(fleet.links[name].address)


OWN_NETWORK: Mapping[str, Fault] = {  # of a fleet whose network is its own
    "drop-worker": lambda fleet, rng: _dropped(fleet, rng.choice(fleet.workers).name),
    "drop-scheduler": lambda fleet, _: _dropped(fleet, "scheduler"),
    "narrow-all": lambda *_: narrowed(),
}


CLOCKS: Mapping[str, int] = {"ahead": 7200, "back": -7200}  # seconds


def _clock(name: str, to: str) -> Fault:
    def fault(fleet: ChaosFleet, rng: random.Random) -> AbstractAsyncContextManager[None]:
        parts = [part for part in fleet.parts if part.name.startswith(to)]
        return _clock_set(fleet, rng.choice(parts), CLOCKS[name])

    return fault


FAULTS: Mapping[str, Fault] = {
    "kill-worker": lambda fleet, rng: _killed(rng.choice(fleet.workers)),
    "kill-engine": lambda fleet, rng: _engine_killed(rng.choice(fleet.workers)),
    "kill-scheduler": lambda fleet, _: _killed(fleet.scheduler),
    "kill-gateway": _gateway_killed,
    "stop-worker": lambda fleet, rng: _stopped(rng.choice(fleet.workers)),
    "stop-engine": lambda fleet, rng: _stopped(rng.choice(fleet.workers), engine=True),
    "stop-scheduler": lambda fleet, _: _stopped(fleet.scheduler),
    "stop-gateway": lambda fleet, rng: _stopped(rng.choice(fleet.gateways)),
    "disk-full": lambda fleet, _: _disk_full(fleet),
    "gateway-born": _gateway_born,
    **{f"clock-{name}-{to}": _clock(name, to) for name in CLOCKS for to in ("scheduler", "gateway", "worker")},
    **{f"{name}-{to}": _network(name, to) for name in NETWORKS for to in ("worker", "scheduler")},
    **OWN_NETWORK,
}
