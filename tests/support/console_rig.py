"""A console in the test's own event loop, and a browser for it that runs no scripts."""

import asyncio
import re
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx2
from tests.support.running_scheduler import Running

from polyfleet.console.access.sessions import Sessions
from polyfleet.console.config import ConsoleConfig
from polyfleet.console.server import create_app, view_of
from polyfleet.gateway.auth import Authenticator
from polyfleet.v1 import fleet_pb2, operations_pb2

CSRF = re.compile(r'name="csrf" (?:content|value)="([^"]*)"')


class ConsoleRig:
    """`async with ConsoleRig(fleet=address) as rig`: keyword arguments are ConsoleConfig's.

    The view asks when pages make it, and not by itself.
    """

    def __init__(self, **settings: Any) -> None:
        self.config = ConsoleConfig(**settings)
        keys_file = Path(self.config.keys_file) if self.config.keys_file else None
        self.view = view_of(self.config)
        self.sessions = Sessions(Authenticator(keys_file), self.config.session_seconds)
        self.app = create_app(self.config, self.sessions, self.view)
        self._browsers: list[httpx2.AsyncClient] = []

    async def __aenter__(self) -> "ConsoleRig":
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for each in self._browsers:
            await each.aclose()
        await self.view.link.close()

    def browser(self, host: str = "127.0.0.1:8080", **headers: str) -> httpx2.AsyncClient:
        """A visitor with cookies of their own."""
        transport = httpx2.ASGITransport(app=self.app)
        made = httpx2.AsyncClient(transport=transport, base_url=f"http://{host}", headers=headers)
        self._browsers.append(made)
        return made

    async def signed_in(self, key: str) -> httpx2.AsyncClient:
        """A visitor who has presented this key."""
        made = self.browser()
        answer = await made.post("/sign-in", data={"key": key})
        assert answer.status_code == 303, answer.text
        return made


async def csrf_of(browser: httpx2.AsyncClient, path: str = "/chat") -> str:
    """What this visitor's forms carry."""
    found = CSRF.search((await browser.get(path)).text)
    assert found
    return found[1]


async def submit(browser: httpx2.AsyncClient, path: str, **fields: str) -> httpx2.Response:
    """Send a form of ours."""
    return await browser.post(path, data={"csrf": await csrf_of(browser), **fields})


async def with_devices(
    running: Running, worker_id: str, *devices: operations_pb2.DeviceState, address: str = "127.0.0.1:1"
) -> Any:
    """A worker's stream, on which it has told of itself and of its devices."""
    stream = running.fleet.Register()
    info = fleet_pb2.WorkerInfo(worker_id=worker_id, host="node-1", accelerator="cuda", address=address)
    await stream.write(fleet_pb2.RegisterRequest(info=info))
    await stream.write(fleet_pb2.RegisterRequest(devices=operations_pb2.DeviceReport(devices=devices)))
    while not (await running.fleet.ListDevices(operations_pb2.ListDevicesRequest())).devices:
        await asyncio.sleep(0.01)
    return stream


def device(index: int, **more: Any) -> operations_pb2.DeviceState:
    healthy = operations_pb2.DEVICE_HEALTH_HEALTHY
    usual: dict[str, Any] = {"health": healthy, "name": "Card", "memory_total_bytes": 8 * 2**30}
    return operations_pb2.DeviceState(accelerator="cuda", index=index, **(usual | more))
