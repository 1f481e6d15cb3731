"""A stack for browsers to look at: scheduler, gateway and consoles on ports, deployments served by fake workers.

It runs in a thread with an event loop of its own, so that tests may use a browser's blocking calls:

    with ConsoleStack(folder) as stack:
        stack.open, stack.keyed         # URLs of a console without keys, and of one that asks for them
        stack.behind                    # of one that asks for them, and that a proxy serves under PREFIX
        stack.say("Hello")              # what every worker answers from now on
        stack.workers, stack.kill("worker-…"), stack.deploy("small", workers=2)
        stack.stop_scheduler(), stack.start_scheduler(), stack.stop_gateway(), stack.start_gateway()
"""

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from tests.support.fake_cluster import FakeCluster, node
from tests.support.fake_worker import FakeWorker
from tests.support.gateway_rig import VOCABULARY
from tests.support.ports import free_addresses
from tests.support.running_scheduler import Running, start, stop
from tests.support.text_assets import assets_document, byte_level_tokenizer
from tests.unit.process.test_process_fleet_keys import write

from polyfleet.console.config import ConsoleConfig
from polyfleet.console.server import Console
from polyfleet.gateway.config import GatewayConfig
from polyfleet.gateway.server import Gateway
from polyfleet.scheduler.launcher.launch import LaunchSpec
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.v1 import operations_pb2

PATIENCE_SECONDS = 60.0
PREFIX = "/polyfleet"
PROMETHEUS = "http://127.0.0.1:1"  # of the console that asks for keys; it is gone
OPERATOR, TENANT = "ops", "team"  # keys, by their ids
END_ID = 2  # <|im_end|>, as the assets say
ANSWER = "The quick brown fox jumps over the lazy dog."
_T = TypeVar("_T")


class StaffedCluster(FakeCluster):
    """Launches a fake worker where the real one would launch a process."""

    def __init__(self, stack: "ConsoleStack") -> None:
        super().__init__(node(cpu=16))
        self._stack = stack

    async def launch(self, spec: LaunchSpec) -> None:
        """Start it at once."""
        await super().launch(spec)
        await self._stack.staff(spec)

    async def stop(self, launcher_id: str, grace: float) -> None:
        """It goes at once."""
        await self._stack.dismiss(launcher_id)
        await super().stop(launcher_id, grace)


class ConsoleStack:
    """See the module's docstring."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._answer: list[int] = []
        self._token_seconds = 0.0
        self._streams: dict[str, Any] = {}
        self.workers: dict[str, FakeWorker] = {}
        keys = write(folder / "keys.yaml", {"id": OPERATOR, "role": "operator"}, {"id": TENANT, "tenant": "a"})
        self._keys = str(keys)
        self._fleet, self._fleet_metrics, self._gateway, *pages = free_addresses(6)
        self.open, self.keyed, self.behind = (f"http://{address}" for address in pages)
        self._pages = pages
        self.say(ANSWER)

    def __enter__(self) -> "ConsoleStack":
        self._thread.start()
        self.run(self._begin())
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_SECONDS)

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Do this in the stack's loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_SECONDS)

    def say(self, text: str, token_seconds: float = 0.0) -> None:
        """What workers answer, and how long a token takes them."""
        self._answer = byte_level_tokenizer().encode(text, add_special_tokens=False).ids
        self._token_seconds = token_seconds
        for worker in self.workers.values():
            worker.token_seconds = token_seconds

    def ask(self, name: str, request: Any) -> Any:
        """What the scheduler answers."""

        async def call() -> Any:
            return await getattr(self._running.fleet, name)(request)

        return self.run(call())

    @property
    def fleet_address(self) -> str:
        """host:port of the scheduler."""
        return self._fleet

    def tell(self, worker_id: str, *devices: operations_pb2.DeviceState, **info: Any) -> None:
        """A worker that is none tells of itself, once, and of its devices, which the fleet has as it told last."""
        self.run(self._tell(worker_id, devices, {"host": worker_id, "accelerator": "cuda"} | info))

    def until_serving(self, accelerators: set[str]) -> None:
        """Wait until a worker of each of these has told of its model and of its devices."""
        self.run(self._until_serving(accelerators))

    def deploy(self, name: str, model_name: str = "", workers: int = 1) -> None:
        """Wish for it, and wait until it is served."""
        wish = pb.ModelDeployment(name=name, model_name=model_name, source="fake:", workers=workers)
        self.run(self._deploy(wish))

    def undeploy(self, name: str) -> None:
        """Wish for it no more."""
        self.run(self._undeploy(name))

    def kill(self, worker_id: str) -> None:
        """A worker is gone at once, and none takes its place."""
        self.run(self.dismiss(worker_id))

    def stop_scheduler(self) -> None:
        """It answers nobody."""
        self.run(stop(self._running))

    def start_scheduler(self) -> None:
        """It is there again, at the same place with the same state."""
        self.run(self._start_scheduler())

    def stop_gateway(self) -> None:
        """It answers nobody."""
        self.run(self.gateway.stop())

    def start_gateway(self) -> None:
        """It is there again."""
        self.run(self._start_gateway())

    async def staff(self, spec: LaunchSpec) -> None:
        """A worker for what a launcher was to start."""
        load = spec.load_request
        worker = FakeWorker(
            spec.worker_id,
            load.model_name,
            fleet=self._fleet,
            deployment=load.deployment,
            assets=assets_document(),
            vocabulary_size=VOCABULARY,
            end_token_ids=[END_ID],
            token_seconds=self._token_seconds,
            tokens=lambda _, index, __: self._answer[index] if index < len(self._answer) else END_ID,
        )
        self.workers[spec.worker_id] = await worker.__aenter__()

    async def dismiss(self, worker_id: str) -> None:
        """It is gone at once."""
        if worker := self.workers.pop(worker_id, None):
            await worker.kill()

    async def _begin(self) -> None:
        self._cluster = StaffedCluster(self)
        await self._start_scheduler()
        await self._start_gateway()
        configs = (
            self._config(self._pages[0]),
            self._config(self._pages[1], keys_file=self._keys, prometheus_url=PROMETHEUS),
            self._config(self._pages[2], keys_file=self._keys, root_path=PREFIX),
        )
        self._consoles = [Console(each) for each in configs]
        for console in self._consoles:
            await console.start()

    async def _end(self) -> None:
        for stream in self._streams.values():
            stream.cancel()
        for console in self._consoles:
            await console.stop()
        await self.gateway.stop()
        for worker_id in list(self.workers):
            await self.dismiss(worker_id)
        await stop(self._running)

    def _config(self, listen: str, **more: str) -> ConsoleConfig:
        return ConsoleConfig(listen=listen, fleet=self._fleet, gateway=self._gateway, **more)  # type: ignore[arg-type]

    async def _start_scheduler(self) -> None:
        settings = {"listen": self._fleet, "metrics_listen": self._fleet_metrics, "settle_seconds": 0.5}
        self._running: Running = await start(
            self._folder, self._cluster, keys_file=self._keys, gateway=self._gateway, **settings
        )

    async def _start_gateway(self) -> None:
        elsewhere = dict.fromkeys(("http_listen", "metrics_listen"), "127.0.0.1:0")
        self.gateway = Gateway(GatewayConfig(grpc_listen=self._gateway, fleet=self._fleet, **elsewhere))  # type: ignore[arg-type]
        await self.gateway.start()

    async def _tell(
        self, worker_id: str, devices: tuple[operations_pb2.DeviceState, ...], info: dict[str, Any]
    ) -> None:
        if worker_id not in self._streams:
            told = pb.WorkerInfo(worker_id=worker_id, address="127.0.0.1:1", **info)
            self._streams[worker_id] = self._running.fleet.Register()
            await self._streams[worker_id].write(pb.RegisterRequest(info=told))
        report = operations_pb2.DeviceReport(devices=devices)
        await self._streams[worker_id].write(pb.RegisterRequest(devices=report))

    async def _until_serving(self, accelerators: set[str]) -> None:
        while True:
            found = await self._running.fleet.ListDevices(operations_pb2.ListDevicesRequest())
            told = {each.state.accelerator for each in found.devices}
            workers = (await self._running.snapshot()).workers
            if told & {each.info.accelerator for each in workers if each.info.model.name} >= accelerators:
                return
            await asyncio.sleep(0.1)

    async def _deploy(self, wish: pb.ModelDeployment) -> None:
        await self._running.fleet.Deploy(pb.DeployRequest(deployment=wish))
        sessions = self.gateway.view.sessions
        while True:
            ours = {id for id, worker in self.workers.items() if worker.deployment == wish.name}
            if len(ours) == wish.workers and all(id in sessions and sessions[id].connected for id in ours):
                return
            await asyncio.sleep(0.02)

    async def _undeploy(self, name: str) -> None:
        await self._running.fleet.Undeploy(pb.UndeployRequest(name=name))
        while any(worker.deployment == name for worker in self.workers.values()):
            await asyncio.sleep(0.02)
