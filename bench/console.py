"""What the console costs with a large fleet: its process, and the browser of somebody who looks.

    python -m bench.console --devices 1000 --viewers 10

A made-up fleet answers the console, each device with other readings every second. Printed: CPU of the console's process
with viewers and at rest, its memory, bytes and seconds of the first page, and the CPU of a browser's main thread, all
of it and by kinds of work. Beside the figures that have one stands the bound; the exit code is 1 where one is broken.
"""

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from typing import Any

import grpc
import psutil
from bench.command import parser_of, positive, run
from bench.report import Row, compare, publish
from tests.support.browser import CHROMIUM, FLAGS

from polyfleet.process.listening import free_address
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.v1 import fleet_pb2_grpc, operations_pb2

PRODUCTS = ("cuda", "rocm", "xpu", "ascend", "cambricon", "hygon", "mps", "cpu")
GIB = 2**30
MAIN_THREAD = {  # figures, and the browser's names of what they sum
    "main_thread": "TaskDuration",
    "main_thread_script": "ScriptDuration",
    "main_thread_style": "RecalcStyleDuration",
    "main_thread_layout": "LayoutDuration",
}
BOUNDS = {  # for 1,000 devices and 10 viewers
    "service": 0.05,
    "resident_mb": 120,
    "first_page_bytes": 300_000,
    "interactive_seconds": 1,
    "main_thread": 0.2,
}
UNITS = {
    "bytes_a_second": "bytes/s a viewer",
    "resident_mb": "MB",
    "first_page_bytes": "bytes",
    "interactive_seconds": "s",
    "loaded_seconds": "s",
}
SETTLE_SECONDS = 3.0  # until what a start costs is behind it


class MadeUpFleet(fleet_pb2_grpc.FleetServicer):  # type: ignore[misc]
    """So many devices, with a worker each."""

    def __init__(self, devices: int) -> None:
        self._devices = devices

    async def ListWorkers(self, request: Any, context: Any) -> pb.FleetSnapshot:
        """Each with other counts than before."""
        model = pb.ModelInfo(name="model", max_sequences=64, num_blocks=1000, context_length=8192)
        snapshot = pb.FleetSnapshot()
        for n in range(self._devices):
            status = pb.WorkerStatus(state=pb.WORKER_STATE_READY, running_sequences=random.randrange(64))
            status.counters.generated_tokens = int(time.time() * 1000)
            accelerator = PRODUCTS[n % len(PRODUCTS)]
            info = pb.WorkerInfo(worker_id=f"w-{n}", host=f"node-{n // 8}", accelerator=accelerator, model=model)
            snapshot.workers.add(info=info, status=status)
        return snapshot

    async def ListDevices(self, request: Any, context: Any) -> operations_pb2.ListDevicesResponse:
        """Each with other readings than before."""
        answer = operations_pb2.ListDevicesResponse()
        for n in range(self._devices):
            accelerator = PRODUCTS[n % len(PRODUCTS)]
            state = operations_pb2.DeviceState(
                accelerator=accelerator,
                index=n % 8,
                name=f"{accelerator} card",
                health=operations_pb2.DEVICE_HEALTH_HEALTHY,
                utilization_ratio=random.random(),
                temperature_celsius=60 + random.random() * 20,
                power_watts=300 + random.random() * 100,
                memory_used_bytes=random.randrange(80) * GIB,
                memory_total_bytes=80 * GIB,
            )
            answer.devices.add(host=f"node-{n // 8}", state=state, worker_ids=[f"w-{n}"])
        return answer

    async def ListRequests(self, request: Any, context: Any) -> operations_pb2.ListRequestsResponse:
        """None."""
        return operations_pb2.ListRequestsResponse()


async def look(address: str, seen: list[int]) -> None:
    """A viewer: count the bytes that come."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET /live/fleet HTTP/1.1\r\nHost: {address}\r\nAccept: text/event-stream\r\n\r\n".encode())
    while chunk := await reader.read(1 << 16):
        seen.append(len(chunk))


async def listening(address: str) -> None:
    """Wait until somebody takes connections there."""
    host, port = address.split(":")
    while True:
        with suppress(OSError):
            (await asyncio.open_connection(host, int(port)))[1].close()
            return
        await asyncio.sleep(0.1)


async def share(process: psutil.Process, seconds: float) -> float:
    """Of a core that a process takes, over so long."""
    before, began = sum(process.cpu_times()[:2]), time.monotonic()
    await asyncio.sleep(seconds)
    return float(sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began)


async def browse(address: str, seconds: float) -> dict[str, float]:
    """The first page in a browser, and what it costs the main thread, by kind of work."""
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = await browser.new_page()
        session = await page.context.new_cdp_session(page)
        await session.send("Network.enable")
        await session.send("Performance.enable", {"timeDomain": "threadTicks"})  # CPU, not waits for a core
        sizes = dict[str, float]()
        session.on("Network.loadingFinished", lambda told: sizes.update({told["requestId"]: told["encodedDataLength"]}))
        await page.goto(f"http://{address}/fleet")
        timing = json.loads(await page.evaluate("JSON.stringify(performance.getEntriesByType('navigation')[0])"))
        figures = {"first_page_bytes": sum(sizes.values()), "interactive_seconds": timing["domInteractive"] / 1000}
        figures["loaded_seconds"] = timing["domContentLoadedEventEnd"] / 1000  # with all scripts run
        await asyncio.sleep(SETTLE_SECONDS)
        before, began = await spent(session), time.monotonic()
        await asyncio.sleep(seconds)
        after, passed = await spent(session), time.monotonic() - began
        await browser.close()
    return figures | {name: (after[name] - before[name]) / passed for name in after}


async def spent(session: Any) -> dict[str, float]:
    """Seconds of CPU that the page's main thread took so far, by the names of our figures."""
    told = {each["name"]: float(each["value"]) for each in (await session.send("Performance.getMetrics"))["metrics"]}
    return {name: told[metric] for name, metric in MAIN_THREAD.items()}


async def measure(devices: int, viewers: int, seconds: float) -> dict[str, float]:
    """All figures."""
    address, fleet = free_address(), free_address()
    server = grpc.aio.server()
    fleet_pb2_grpc.add_FleetServicer_to_server(MadeUpFleet(devices), server)
    server.add_insecure_port(fleet)
    await server.start()
    command = [sys.executable, "-m", "polyfleet.console", "--listen", address, "--fleet", fleet]
    async with AsyncExitStack() as exits:
        started = await asyncio.create_subprocess_exec(*command, env=dict(os.environ))
        exits.push_async_callback(started.wait)
        exits.callback(started.terminate)
        process = psutil.Process(started.pid)
        await listening(address)
        await asyncio.sleep(SETTLE_SECONDS)
        figures = {"rest": await share(process, seconds)}
        seen = list[int]()
        tasks = [asyncio.create_task(look(address, seen)) for _ in range(viewers)]
        await asyncio.sleep(2)
        figures["service"] = await share(process, seconds)
        figures["bytes_a_second"] = sum(seen) / (seconds + 2) / max(viewers, 1)
        for task in tasks:
            task.cancel()
        figures["resident_mb"] = process.memory_info().rss / 1e6
        if CHROMIUM:
            figures |= await browse(address, seconds)
    await server.stop(0)
    return figures


def rows(figures: dict[str, float]) -> Iterator[Row]:
    """Each figure, beside its bound where it has one; those of CPU are shares of a core."""
    for name, value in figures.items():
        bound = BOUNDS.get(name)
        peer = "at most" if bound else ""
        yield compare(f"console_{name}", value, UNITS.get(name, "of a core"), peer, bound, lower_is_better=True)


def main() -> int:
    """Measure and print; 1 where a bound is broken or can't be told."""
    parser = parser_of(__doc__)
    parser.add_argument("--devices", type=positive, default=1000, help="(default: 1000)")
    parser.add_argument("--viewers", type=positive, default=10, help="(default: 10)")
    parser.add_argument("--seconds", type=positive, default=20, help="of each measurement (default: 20)")
    given = parser.parse_args()
    figures = asyncio.run(measure(given.devices, given.viewers, given.seconds))
    publish(rows(figures), given.json)
    if missing := BOUNDS.keys() - figures.keys():
        print(f"Chromium is not installed: {', '.join(sorted(missing))} can't be told.", file=sys.stderr)
        return 1
    return int(any(figures[name] > bound for name, bound in BOUNDS.items()))


if __name__ == "__main__":
    run(main)
