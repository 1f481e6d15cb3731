"""Worker: one process that serves one model. Its states, its engine process, its sessions. No gRPC server here.

    STARTING ──load──▶ LOADING ──▶ READY ◀──suspend, resume──▶ UNHEALTHY
       ▲                  │          │ └─────drain─────▶ DRAINING ──▶ exit
       └── load failed, unload ──────┘      the engine process ends by itself: UNHEALTHY ──▶ exit

An engine process lives as long as its model: unloading ends it, which frees memory and device for certain. When it
ends unasked, every sequence ends UNAVAILABLE and the worker exits with a failure; whoever started it starts another.

A worker whose engine answers the canary wrongly or says nothing, or whose device is unhealthy, is suspended: its
sequences end UNAVAILABLE, so that gateways move them, and it takes no others until it is well again. An engine that
stays so is replaced by a new process once; then the worker ends.
"""

import asyncio
import logging
import time
from dataclasses import dataclass

from polyfleet.engine.facts import EngineStatus
from polyfleet.process.revision import Revision
from polyfleet.process.tasks import end
from polyfleet.process.within import Within
from polyfleet.serving.adapters import ServedAdapters
from polyfleet.serving.admission import Admission
from polyfleet.serving.convert import model_info_of, options_of, status_of
from polyfleet.serving.engine_client import EngineClient, LoadError, OnProgress
from polyfleet.serving.health.device_watch import confined, num_devices
from polyfleet.serving.health.lifecycle import Lifecycle
from polyfleet.serving.health.load_watch import LoadWatch
from polyfleet.serving.health.watchdog import EngineWatchdog, WatchdogLimits
from polyfleet.serving.histograms import EngineHistograms
from polyfleet.serving.peak_rate import PeakRate
from polyfleet.serving.router import UNAVAILABLE, SequenceRouter
from polyfleet.serving.transfers import Transfers
from polyfleet.v1 import fleet_pb2 as fleet

log = logging.getLogger(__name__)

REPLACEMENT = "replacement"  # a source of trouble


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """A model to serve: path on this host, served name, and whose wish it is."""

    source: str
    model_name: str
    deployment: str
    options: fleet.WorkerOptions
    adapters: tuple[fleet.Adapter, ...] = ()  # that it must have to be ready


class WorkerRefusal(Exception):
    """An operation does not fit the worker's state. The message is one sentence."""


class Worker:
    """State machine of the worker process; single-threaded, on the event loop.

    `revision` advances with new states and new info; `ending` is set when the process has to end: by drain with exit,
    or by the engine's end (`state` is UNHEALTHY then).
    """

    def __init__(
        self,
        info: fleet.WorkerInfo,
        device: str,
        *,
        limits: WatchdogLimits = WatchdogLimits(),  # noqa: B008 - frozen
        log_level: str = "info",
        engine_module: str = "",
    ) -> None:
        """`engine_module`: what its engine process runs, where that is no real engine."""
        self._info, self._device, self._limits = info, device, limits
        self._log_level, self._engine_module = log_level, engine_module
        self._engine: EngineClient | None = None
        self._spec: LoadSpec | None = None  # of what is loaded
        self._load_seconds = 0.0  # that it took
        self._news: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._loading: asyncio.Task[fleet.ModelInfo] | None = None
        self._replacing: asyncio.Task[None] | None = None
        self._unloading = asyncio.Lock()
        self.router = SequenceRouter()
        self.revision = Revision()
        self.ending = asyncio.Event()
        self.load_progress, self.tokenizer = 0.0, b""
        self.transfers = Transfers(info, lambda: self._engine)
        self.peak = PeakRate()  # generated tokens per second of steps, of the model that is loaded
        self.histograms = EngineHistograms()  # of that model
        self.adapters = ServedAdapters(info, self.revision, lambda: self._engine)
        self._lifecycle = Lifecycle(self.revision)
        self.admission = Admission(self.router, self._lifecycle, lambda: self._engine, self.adapters)
        self.watchdog = EngineWatchdog(self, self._lifecycle, limits)

    # What it is and how it does.

    def info(self) -> fleet.WorkerInfo:
        """A copy of what it announces."""
        copy = fleet.WorkerInfo()
        copy.CopyFrom(self._info)
        return copy

    @property
    def state(self) -> "fleet.WorkerState.ValueType":
        """Where it stands."""
        return self._lifecycle.state

    @property
    def busy(self) -> bool:
        """Whether its engine has work."""
        return len(self.router) > 0

    @property
    def failed(self) -> bool:
        """Whether it is unhealthy for good, and not only suspended."""
        return self._lifecycle.failed

    @property
    def num_devices(self) -> int:
        """Devices of its group, neighbours from its own on."""
        return self._info.num_devices or 1

    def set_addresses(self, address: str, metrics_address: str) -> None:
        """Where others reach it, once the ports are bound."""
        self._info.address, self._info.metrics_address = address, metrics_address

    def engine_status(self) -> EngineStatus:
        """The engine's last word; all zero without one."""
        return self._engine.status if self._engine else EngineStatus()

    def status(self) -> fleet.WorkerStatus:
        """How it is doing now."""
        return status_of(self.engine_status(), self.state, self._lifecycle.reason, self.load_progress)

    @property
    def engine_pid(self) -> int | None:
        """The engine process; None without a model."""
        return self._engine.pid if self._engine else None

    # The model.

    async def load(self, spec: LoadSpec, on_progress: OnProgress) -> fleet.ModelInfo:
        """Load a model. Raises WorkerRefusal when there is one already, LoadError (state STARTING again) when it can't.

        Loading goes on when the caller is cancelled.
        """
        if self.state != fleet.WORKER_STATE_STARTING:
            raise WorkerRefusal(f"The worker {self._lifecycle.doing}: only a worker without a model can load one.")
        self._info.num_devices = num_devices(self._info.accelerator, spec.options.tensor_parallel)
        self._info.deployment = spec.deployment or self._info.deployment
        self._lifecycle.enter(fleet.WORKER_STATE_LOADING)
        loading = self._loading = asyncio.create_task(self._load(spec, on_progress))
        loading.add_done_callback(lambda task: task.cancelled() or task.exception())  # its caller may be gone
        try:
            return await asyncio.shield(loading)
        except asyncio.CancelledError:
            if loading.cancelled():
                raise WorkerRefusal("The worker was told to unload the model while it loaded.") from None
            raise

    async def _load(self, spec: LoadSpec, on_progress: OnProgress, *, again: bool = False) -> fleet.ModelInfo:
        began = time.monotonic()
        try:
            engine = await self._start_engine(spec, on_progress, again)
        except Exception as error:
            if not isinstance(error, LoadError):
                log.exception("Loading failed.")
            self.load_progress = 0.0
            if self.state == fleet.WORKER_STATE_LOADING:
                self._lifecycle.enter(fleet.WORKER_STATE_STARTING, str(error))
            raise LoadError(str(error)) from None
        self._engine, self._spec, self.peak, self.histograms = engine, spec, PeakRate(), EngineHistograms()
        self._load_seconds = time.monotonic() - began
        self.admission.prefixes.clear(engine.loaded.facts.num_blocks * engine.loaded.facts.block_size)
        self._info.model.CopyFrom(model_info_of(engine.loaded, spec.model_name))
        self.load_progress, self.tokenizer = 1.0, engine.loaded.tokenizer
        self._news = asyncio.create_task(self._relay(engine))
        self._watching = asyncio.create_task(self.watchdog.watch(engine))
        await self.adapters.begin(spec.adapters, engine.loaded.adapters, again=again)
        self.watchdog.begin(engine.loaded.canary, again=again)
        self.resume(REPLACEMENT)
        if self.state == fleet.WORKER_STATE_LOADING:  # else it was told to drain meanwhile
            self._lifecycle.settle()
        return self._info.model

    async def _start_engine(self, spec: LoadSpec, on_progress: OnProgress, again: bool) -> EngineClient:
        def progressed(progress: float, phase: str) -> None:
            self.load_progress = progress
            watch.got_on(progress, phase)
            on_progress(progress, phase)

        watch = LoadWatch(self._limits, self._lifecycle.remark)
        device, variables = confined(self._device, self.num_devices)
        starting = EngineClient.load(
            spec.source,
            options_of(spec.options, device),
            progressed,
            adapters=() if again else [each.source for each in spec.adapters],
            environment=variables,
            canary_interval=self._limits.canary_interval,
            transfer=self.transfers.settings,
            log_level=self._log_level,
            module=self._engine_module,
        )
        return await watch.over(starting)

    async def unload(self) -> None:
        """Cancel what runs, end the engine process (DRAINING meanwhile) and be STARTING again, also after a drain."""
        async with self._unloading:
            self.drain(leave=False)
            await self.close()
            self._info.ClearField("model")
            self._info.num_devices, self._info.own_model, self.load_progress = 0, False, 0.0
            if self.state == fleet.WORKER_STATE_DRAINING and not self.ending.is_set():
                self._lifecycle.enter(fleet.WORKER_STATE_STARTING)

    async def close(self) -> None:
        """Cancel what runs and end the engine process; for the process's end, when the state says why already."""
        await end(*filter(None, (self._loading, self._replacing)))
        self._loading = self._replacing = None
        self.router.fail_all(UNAVAILABLE, "The worker unloads its model.")
        await self._end_engine()
        self.tokenizer = b""
        self.resume(REPLACEMENT)

    async def _end_engine(self) -> bool:
        """Whether the engine process is gone."""
        await end(*filter(None, (self._news, self._watching)))
        self._news = self._watching = None
        gone = self._engine is None or await self._engine.stop()
        self._engine = None
        return gone

    def replace_engine(self, reason: str) -> None:
        """Load the model again in a new engine process; suspended meanwhile, failed when that can't be done."""
        log.error("The engine process is replaced: %s", reason)
        self.suspend(REPLACEMENT, "Its engine process is being replaced.")
        self._replacing = asyncio.create_task(self._replace())

    async def _replace(self) -> None:
        spec = self._spec
        assert spec is not None
        if not await self._end_engine():
            self.fail("The engine process can't be ended: it hangs in the device's driver.")
            return
        limit = self._limits.reload_limit(self._load_seconds)
        try:
            with Within(limit):
                await self._load(spec, lambda *_: None, again=True)
        except asyncio.TimeoutError:
            self.fail(f"The engine process can't be replaced: the new one did not load the model within {limit:.0f} s.")
        except LoadError as error:
            self.fail(f"The engine process can't be replaced: {error}")

    def drain(self, *, leave: bool) -> int:
        """Take no new sequences; with `leave` the process has to end once quiet. Returns how many still run."""
        if self.state != fleet.WORKER_STATE_DRAINING and not self.failed:
            self._lifecycle.enter(fleet.WORKER_STATE_DRAINING)
        if leave:
            self.ending.set()
        return len(self.router)

    def fail(self, reason: str) -> None:
        """The worker can't serve any more: end every sequence UNAVAILABLE, be UNHEALTHY, ask for the process's end."""
        self.router.fail_all(UNAVAILABLE, reason, broken=True)
        self._lifecycle.fail(reason)
        self.ending.set()

    def suspend(self, source: str, reason: str) -> None:
        """What it computes can't be trusted, by the word of `source`: end every sequence UNAVAILABLE, take no others.

        `reason` is one sentence. Sources are independent; the worker is well again when each has called `resume`.
        """
        if self._lifecycle.trouble(source, reason):
            for engine_id in self.router.fail_all(UNAVAILABLE, reason, broken=True):
                if self._engine is not None:
                    self._engine.cancel(engine_id)

    def resume(self, source: str) -> None:
        """`source` has nothing against it any more."""
        self._lifecycle.recover(source)

    async def _relay(self, engine: EngineClient) -> None:
        try:
            async for news in engine.news():
                self.watchdog.heard()
                self.router.deliver(news)
                self.peak.see(engine.status.generated_tokens, engine.status.step_seconds)
                self.histograms.see(engine.status, news.updates)
                if news.canary is not None:
                    self.watchdog.judge(news.canary)
            reason = engine.reason
        except Exception as error:
            log.exception("The engine's news can't be read.")
            reason = f"The engine's news can't be read: {error}"
        self.fail(reason)
