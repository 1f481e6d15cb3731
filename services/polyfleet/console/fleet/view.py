"""What the scheduler said last. One poller asks for all who look, and goes on when nobody answers."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from polyfleet.console.fleet.devices import DeviceHistory, device_id
from polyfleet.console.fleet.history import Columns, latencies
from polyfleet.console.fleet.link import FleetLink, FleetProblem
from polyfleet.console.fleet.prometheus import Prometheus
from polyfleet.console.fleet.words import UNHEARD, state_word
from polyfleet.process.revision import Revision
from polyfleet.process.tasks import end
from polyfleet.process.within import Within
from polyfleet.v1 import fleet_pb2, operations_pb2

POLL_SECONDS = 1.0  # while somebody looks
IDLE_SECONDS = 10.0  # else, for the last hour's numbers
SERIES = ("tokens_per_second", "running", "waiting", "first_p50", "first_p99", "token_p50", "token_p99")
REQUEST_POLLS = 2  # polls between looks at the requests that have ended
log = logging.getLogger(__name__)


class FleetView:
    """`problem` says why `snapshot` is old; empty while it is not. Lives in one event loop."""

    def __init__(self, link: FleetLink, prometheus: Prometheus | None = None) -> None:
        self.link, self.prometheus = link, prometheus
        self.snapshot = fleet_pb2.FleetSnapshot()
        self.devices: tuple[operations_pb2.FleetDevice, ...] = ()
        self.requests = operations_pb2.ListRequestsResponse()
        self.problem, self.heard = UNHEARD, 0.0  # Unix time
        self._heard_at = float("-inf")  # the same, by a clock that nobody sets
        self.history = Columns(*SERIES)
        self.device_histories: defaultdict[str, DeviceHistory] = defaultdict(DeviceHistory)
        self.rates: dict[str, float] = {}  # tokens a second, by worker
        self.latencies = latencies((), 0.0)
        self.changed = Revision()
        if prometheus:
            prometheus.on_news = self.changed.advance
        self.ended = False  # whoever waits for changes waits no more
        self._counts: dict[str, tuple[float, int]] = {}
        self._polls = 0
        self._viewers = 0
        self._looked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to ask."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Ask no more; who waits for news is woken."""
        self.ended = True
        self.changed.advance()
        if self._task:
            await end(self._task)
        if self.prometheus:
            await self.prometheus.close()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Somebody looks, inside."""
        self._viewers += 1
        self._looked.set()
        try:
            yield
        finally:
            self._viewers -= 1

    async def fresh(self) -> None:
        """Ask now, if the last answer is no fresh one."""
        if self.age > POLL_SECONDS:
            await self.poll()

    @property
    def age(self) -> float:
        """Seconds since the scheduler was heard."""
        return time.monotonic() - self._heard_at

    @property
    def tokens_per_second(self) -> float:
        """Of all workers together."""
        return sum(self.rates.values())

    @property
    def num_ready(self) -> int:
        """How many workers are."""
        return sum(state_word(each.status.state) == "ready" for each in self.snapshot.workers)

    async def poll(self) -> None:
        """Ask once. What can't be had stays as it was."""
        if self.prometheus and self._viewers:
            self.prometheus.look()
        try:
            self.snapshot = await self.link.call(
                "ListWorkers", fleet_pb2.ListWorkersRequest(), fleet_pb2.FleetSnapshot, POLL_SECONDS * 5
            )
            await self._look_at_devices()
            if self._polls % REQUEST_POLLS == 0 or not self._viewers:
                self.requests = await self.link.call(
                    "ListRequests", operations_pb2.ListRequestsRequest(), operations_pb2.ListRequestsResponse
                )
            self._polls += 1
            self.problem, self.heard, self._heard_at = "", time.time(), time.monotonic()
            self._note(self.heard)
        except FleetProblem as error:
            if not self.problem:
                log.warning("The fleet can't be seen. %s", error)
            self.problem = str(error)
        self.changed.advance()

    async def _look_at_devices(self) -> None:
        devices = await self.link.call(
            "ListDevices", operations_pb2.ListDevicesRequest(), operations_pb2.ListDevicesResponse
        )
        self.devices, now = tuple(devices.devices), time.time()
        for device in self.devices:
            self.device_histories[device_id(device)].add(now - device.age_seconds, device.state)

    def _note(self, now: float) -> None:
        counts = dict[str, tuple[float, int]]()
        self.rates = {}
        for worker in self.snapshot.workers:
            name, tokens = worker.info.worker_id, worker.status.counters.generated_tokens
            counts[name] = (self._heard_at, tokens)
            before = self._counts.get(name)
            if before and self._heard_at > before[0]:
                self.rates[name] = max(0, tokens - before[1]) / (self._heard_at - before[0])
        self._counts = counts
        statuses = [worker.status for worker in self.snapshot.workers]
        running = sum(each.running_sequences for each in statuses)
        waiting = sum(each.waiting_sequences for each in statuses)
        self.latencies = latencies(self.requests.ended, now)
        load = {"tokens_per_second": self.tokens_per_second, "running": running, "waiting": waiting}
        self.history.add(now, load | self.latencies)

    async def _run(self) -> None:
        while True:
            await self.poll()
            self._looked.clear()
            if self._viewers:
                await asyncio.sleep(POLL_SECONDS)
            else:
                with suppress(asyncio.TimeoutError), Within(IDLE_SECONDS):
                    await self._looked.wait()
