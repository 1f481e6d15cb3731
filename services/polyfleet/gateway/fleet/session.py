"""One `Worker.Session` with one worker: commands out, deltas in, for as long as the fleet knows the worker.

The session redials for ever. What breaks it, or silence for 3 s in either direction, is a loss to every sequence on it.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from google.protobuf.message import DecodeError

from polyfleet.convert.sequences import sequence_update, start_message
from polyfleet.gateway.errors import Code
from polyfleet.gateway.fleet.breaker import CircuitBreaker
from polyfleet.gateway.fleet.delivery import Delivery
from polyfleet.gateway.fleet.dialling import Conversation, Dial
from polyfleet.gateway.fleet.prefix_news import PrefixNewsReader
from polyfleet.gateway.fleet.sink import SequenceSink
from polyfleet.gateway.fleet.unreported import UnreportedStarts
from polyfleet.gateway.listeners import Listeners
from polyfleet.gateway.metrics import Metrics
from polyfleet.placement.fleet import Worker, WorkerState
from polyfleet.placement.prefixes import PrefixMap
from polyfleet.placement.proto import went_back, worker_from_proto
from polyfleet.process.tasks import end
from polyfleet.v1 import fleet_pb2, worker_pb2
from polyfleet.wire.answers import SequenceUpdate
from polyfleet.wire.requests import SequenceRequest
from polyfleet.wire.tickets import TransferOffer

TICK_SECONDS = 0.5
SILENT_TICKS = 6  # a worker sends something every 0.5 s; after 3 s without it is lost
REDIAL_SECONDS = (0.05, 1.0)  # first and longest pause
CALLERS_OWN = frozenset({Code.INVALID_ARGUMENT, Code.CANCELLED, Code.DEADLINE_EXCEEDED})  # no fault of the worker's
log = logging.getLogger(__name__)


class Session:
    """The gateway's side. `changed` is called when the worker becomes usable, stops being so, or changes state."""

    def __init__(
        self,
        info: fleet_pb2.WorkerInfo,
        gateway_id: str,
        dial: Dial,
        changed: Listeners,
        metrics: Metrics | None = None,
        prefixes: PrefixMap | None = None,
        touched: "set[Session] | None" = None,
    ) -> None:
        self.info = info
        self.worker_id = info.worker_id
        self._prefixes = PrefixNewsReader(info.worker_id, prefixes)
        self._prefixes.of_model(info.model)
        self.breaker = CircuitBreaker()
        self._metrics = (metrics or Metrics()).of_worker(info.worker_id)
        self.connected = False
        self.offer = TransferOffer("")  # of prefixes, to other workers
        self._reported = fleet_pb2.WorkerStatus()  # by the fleet
        self._heard: fleet_pb2.WorkerStatus | None = None  # on this session, so fresher
        self._sound = fleet_pb2.WorkerStatus()  # the last one on it whose time did not go back
        self._went_back = ""  # how that of the last one did
        self._was_connected = False
        self._gateway_id = gateway_id
        self._dial = dial
        self._changed = changed
        self._sinks: dict[str, SequenceSink] = {}
        self._unreported = UnreportedStarts()
        self._call: Conversation | None = None
        self._silence = 0
        self._delivery = Delivery()
        self._told: Worker | None = None  # by its last report,
        self._worker: Worker | None = None  # and with this gateway's starts
        self._touched = set[Session]() if touched is None else touched  # sessions whose worker() may be another one
        self._task: asyncio.Task[None] | None = None

    @property
    def num_sequences(self) -> int:
        """Sequences of this gateway that run there."""
        return len(self._sinks)

    @property
    def says_ready(self) -> bool:
        """Whether the worker was ready when last heard, by this gateway or by the fleet; it may be out of reach now."""
        return (self._heard or self._reported).state == fleet_pb2.WORKER_STATE_READY

    def open(self) -> None:
        """Dial, and dial again whenever it breaks, until `close`."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Break the session and dial no more."""
        if self._task is not None:
            await end(self._task)

    def report(self, info: fleet_pb2.WorkerInfo, status: fleet_pb2.WorkerStatus) -> None:
        """What the fleet says of this worker now. A new address breaks the session to the old one."""
        if info == self.info and status == self._reported:
            return  # most of a large fleet, whenever one worker changes
        self.info, self._reported = info, status
        self._touch(told=True)
        self._prefixes.of_model(info.model)

    def worker(self) -> Worker:
        """The worker as placement should see it: its last report, and this gateway's starts that it doesn't cover."""
        if self._worker is None:
            self._told = self._told or self._as_told()
            self._worker = self._unreported.added_to(self._told)
        if self.breaker.seconds:
            return replace(self._worker, circuit_open=True)
        return self._worker

    def _as_told(self) -> Worker:
        worker = worker_from_proto(self.info, self._heard or self._reported)
        if self._went_back:
            worker = replace(worker, nonsense=self._went_back)
        if not self.connected and worker.state is WorkerState.READY:
            worker = replace(worker, state=WorkerState.LOST if self._was_connected else WorkerState.STARTING)
        return worker

    def _touch(self, *, told: bool = False) -> None:
        self._told, self._worker = None if told else self._told, None
        self._touched.add(self)

    def start(self, request: SequenceRequest, sink: SequenceSink, grains: Sequence[int] = ()) -> None:
        """Run a sequence there, whose prompt has these grains. A loss may come at any time, never within this call."""
        self._sinks[request.sequence_id] = sink
        cached = self._prefixes.started(grains)
        tokens = len(request.prompt_ids) + len(request.generated_ids)
        if request.prefix_source is not None:
            cached = max(cached, request.prefix_source.tokens)
        self._unreported.add(request.sequence_id, max(1, tokens - cached))
        self._touch()
        self.breaker.started()
        self._send(worker_pb2.SessionCommand(start=start_message(request), grains=grains))

    def expect(self, sequence_id: str, tokens: int, grains: Sequence[int] = ()) -> None:
        """Another worker is about to have this one compute so many tokens, which have these grains."""
        self._unreported.expect(sequence_id, max(1, tokens - self._prefixes.started(grains)))
        self._touch()

    def cancel(self, sequence_id: str) -> None:
        """Stop a sequence; none of its news come out any more."""
        if self._sinks.pop(sequence_id, None) is not None:
            self._unreported.discard(sequence_id)
            self._touch()
            self._send(worker_pb2.SessionCommand(cancel=worker_pb2.CancelSequence(sequence_id=sequence_id)))

    def _send(self, command: worker_pb2.SessionCommand) -> None:
        if self._call is not None:
            self._delivery.sent()
            self._call.send(command.SerializeToString())

    async def _run(self) -> None:
        (pause, longest), told, fields = REDIAL_SECONDS, "", {"worker_id": self.worker_id}
        while True:
            reason = "the gateway is closing"
            try:
                reason = await self._converse()
            except Exception:  # a fault of ours ends this session, not the redialling
                log.exception("A session failed.", extra={"worker_id": self.worker_id})
                reason = "the gateway failed"
            finally:
                pause = REDIAL_SECONDS[0] if self.connected else min(2 * pause, longest)
                self._lose(reason)
            news = "handshake" in reason.lower() and reason != told  # a certificate that one of the two does not take
            log.log(logging.WARNING if news else logging.DEBUG, "Session ended: %s", reason, extra=fields)
            told = reason
            await asyncio.sleep(pause)

    async def _converse(self) -> str:
        """One session from Hello to its end; why it ended."""
        address = self.info.address
        try:
            self._call = call = await self._dial(address, self._came)
        except OSError as error:
            return str(error)
        watch = asyncio.create_task(self._watch(address))
        try:
            self._send(worker_pb2.SessionCommand(hello=worker_pb2.Hello(gateway_id=self._gateway_id)))
            await asyncio.wait((call.ended, watch), return_when=asyncio.FIRST_COMPLETED)
            return call.ended.result() if call.ended.done() else watch.result()
        except DecodeError:
            return "what the worker sent can't be read"
        finally:
            self._call = None
            call.close()
            await end(call.ended, watch)

    def _came(self, message: bytes) -> None:
        if not self.connected:  # it has read our Hello
            self._set_connected()
        self._receive(worker_pb2.SessionEvent.FromString(message))

    async def _watch(self, address: str) -> str:
        """Ends when the worker is silent or has moved. Counts ticks, so that a stalled loop is no silent worker."""
        self._silence = 0
        while self._silence < SILENT_TICKS:
            await asyncio.sleep(TICK_SECONDS)
            self._silence += 1
            self._delivery.tick()
            if self.info.address != address:
                return "the worker has a new address"
            if self._delivery.silence >= SILENT_TICKS:
                return f"the worker has read nothing that was sent to it for {SILENT_TICKS * TICK_SECONDS:g} s"
        return f"no news from the worker for {SILENT_TICKS * TICK_SECONDS:g} s"

    def _judge(self, news: Sequence[bool]) -> None:
        """Good or bad, for the breaker; who waits for a worker looks again when it lets one through."""
        was_open = self.breaker.open
        for _ in range(news.count(False)):
            self._metrics.failures.inc()
            self.breaker.failed()
        if any(news):
            self.breaker.worked()
        if self.breaker.open or was_open:
            self._touch()
            self._metrics.circuit_open.set(self.breaker.open)
            asyncio.get_running_loop().call_later(self.breaker.seconds, self._changed.call)

    def _set_connected(self) -> None:
        if self._was_connected:
            self._metrics.reconnects.inc()
        self.connected = self._was_connected = True
        self._touch(told=True)
        self._changed.call()

    def _receive(self, event: worker_pb2.SessionEvent) -> None:
        """One step's news."""
        self._silence = 0
        self._delivery.heard(event)
        self._touch(told=True)
        before = (self._heard or self._reported).state
        if event.HasField("status"):
            self._heard = event.status
            self._went_back = went_back(self._sound, self._heard)
            if not self._went_back:
                self._sound = self._heard
        if self._unreported:
            self._unreported.strike(event)
        if event.HasField("prefix_news") and not self._prefixes.hear(event.prefix_news):
            self._send(worker_pb2.SessionCommand(resync_prefixes=worker_pb2.ResyncPrefixes()))
        if event.HasField("transfer"):
            self.offer = TransferOffer(event.transfer.address, event.transfer.local, event.transfer.key)
        if event.deltas:
            self._judge([self._pass_on(sequence_update(delta)) for delta in event.deltas])
        if (self._heard or self._reported).state != before:
            self._changed.call()

    def _pass_on(self, update: SequenceUpdate) -> bool:
        """Whether it is good news of the worker, be it bad news of the sequence.

        Ends are passed on in the next turn of the event loop: their accounts keep no other stream's token waiting.
        """
        sequence_id = update.sequence_id
        if self._unreported:
            self._unreported.discard(sequence_id)
        ended = update.finish_reason is not None or update.error
        sink = self._sinks.pop(sequence_id, None) if ended else self._sinks.get(sequence_id)
        if sink is not None and ended:
            asyncio.get_running_loop().call_soon(sink.updated, update)
        elif sink is not None:
            sink.updated(update)
        return not update.error or update.code in CALLERS_OWN

    def _lose(self, reason: str) -> None:
        """Forget the worker's sequences and tell each of them."""
        was_connected, self.connected, self.offer = self.connected, False, TransferOffer("")
        self._heard, self._sound, self._went_back = None, fleet_pb2.WorkerStatus(), ""
        self._touch(told=True)
        self._delivery = Delivery()
        self._unreported = UnreportedStarts()
        self._prefixes.lost()
        sinks, self._sinks = list(self._sinks.values()), {}
        if sinks:
            self._judge([False])
        for sink in sinks:
            sink.lost(reason)
        if was_connected:
            self._changed.call()
