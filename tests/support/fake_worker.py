"""A worker without a model, in the test's own event loop: the `Worker` service and `Fleet` registration, no torch.

Each token is a function of prompt, choice and index (`fake_token`), so a test can check every one it receives.

    async with FakeWorker("w-1", model="fake", fleet="127.0.0.1:50052") as worker:
        worker.address                  # host:port of its Worker service (port 0: any free one)
        worker.token_seconds = 0.05     # slower from the next step on; first_token_seconds delays first tokens alone
        worker.started, worker.cancelled, worker.sequences, worker.sessions   # what it saw, and holds now
        worker.drop_after(5)            # break every session (UNAVAILABLE) once 5 more tokens have been sent in all
        worker.drop_sessions()          # break every session now; new sessions are welcome
        worker.refusal = (grpc.StatusCode.UNAVAILABLE.value[0], "draining")   # answer each start with this error
        worker.set_state(WORKER_STATE_UNHEALTHY, "canary failed")             # reported to Fleet and in sessions
        await worker.kill()             # gone at once: sessions break, port closed, no more reports

`fingerprint=` says which weights and tokenizer it has (empty: not known). `tokens=` replaces `fake_token` by another
function (prompt_ids, index, choice) -> id; `end_token_ids` and `stop_token_ids` end a sequence as on a real worker.
`assets=` is the tokenizer document it gives to the Fleet. `adapters` are sources by name.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import grpc
from tests.support.fake_adapters import fake_adapters
from tests.support.fake_registration import FakeRegistration
from tests.support.fake_tokens import fake_adapted, fake_embedding, fake_token, fake_tokens

from polyfleet.process.within import Within
from polyfleet.v1 import fleet_pb2 as fleet
from polyfleet.v1 import inference_pb2 as inference
from polyfleet.v1 import worker_pb2 as pb
from polyfleet.v1 import worker_pb2_grpc
from polyfleet.wire.features import FEATURES

TokenFunction = Callable[[Sequence[int], int, int], int]
REPORT_SECONDS = 0.5
__all__ = ["FakeSequence", "FakeSession", "FakeWorker", "fake_embedding", "fake_token", "fake_tokens", "fleet_state"]


@dataclass(eq=False)
class FakeSession:
    """One open Session: events on their way to the gateway; None ends it with UNAVAILABLE."""

    gateway_id: str = ""
    num_starts: int = 0  # that have come over it
    events: asyncio.Queue[pb.SessionEvent | None] = field(default_factory=asyncio.Queue)


@dataclass(eq=False)
class FakeSequence:
    """One running sequence and how far it is."""

    start: pb.StartSequence
    session: FakeSession
    ready_at: float
    generated: int
    begun: bool = False


class FakeWorker(worker_pb2_grpc.WorkerServicer):  # type: ignore[misc]
    """See the module's docstring. Every attribute may be changed while it runs."""

    def __init__(
        self,
        worker_id: str = "w-fake",
        model: str = "fake",
        *,
        fleet: str = "",
        fleet_token: str = "",
        port: int = 0,
        accelerator: str = "cpu",
        deployment: str = "",
        token_seconds: float = 0.0,
        first_token_seconds: float = 0.0,
        max_sequences: int = 16,
        context_length: int = 2048,
        vocabulary_size: int = 1000,
        hidden_size: int = 8,
        end_token_ids: Sequence[int] = (),
        assets: bytes = b"",
        fingerprint: str = "",
        tokens: TokenFunction | None = None,
    ) -> None:
        self.worker_id, self.model, self.accelerator, self.deployment = worker_id, model, accelerator, deployment
        self.fleet, self.fleet_token, self.port, self.assets = fleet, fleet_token, port, assets
        self.fingerprint = fingerprint
        self.token_seconds, self.first_token_seconds = token_seconds, first_token_seconds
        self.max_sequences, self.context_length = max_sequences, context_length
        self.vocabulary_size, self.hidden_size, self.end_token_ids = vocabulary_size, hidden_size, tuple(end_token_ids)
        self.tokens: TokenFunction = tokens or (lambda p, i, c: fake_token(p, i, c, self.vocabulary_size))
        self.adapters, self.features, (self.state, self.reason) = dict[str, str](), FEATURES, (fleet_state("READY"), "")
        self.refusal: tuple[int, str] | None = None
        self.started: list[pb.StartSequence] = []
        self.cancelled: list[str] = []
        self.sequences: dict[tuple[FakeSession, str], FakeSequence] = {}
        self.sessions: list[FakeSession] = []
        self.address, self.registrations, self._steps = "", 0, 0  # times that a Fleet answered
        self._drop_after: int | None = None
        self.changed = asyncio.Event()
        self._server: Any = None
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "FakeWorker":
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        worker_pb2_grpc.add_WorkerServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        self.address = f"127.0.0.1:{self.port}"
        await self._server.start()
        self._tasks = [asyncio.create_task(self._run())]
        if self.fleet:
            self._tasks.append(asyncio.create_task(FakeRegistration(self).run()))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def kill(self) -> None:
        """End as if by SIGKILL: sessions break with UNAVAILABLE, the port closes, reports stop. Twice does no harm."""
        self.drop_sessions()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self._server.stop(0.2)

    def drop_sessions(self) -> None:
        """Break every open session, behind what was sent already, and forget its sequences."""
        self.sequences.clear()
        for session in self.sessions:
            session.events.put_nowait(None)

    def drop_after(self, tokens: int) -> None:
        """Break every session, once, when this many more tokens have been sent."""
        self._drop_after = tokens

    def set_state(self, state: "fleet.WorkerState.ValueType", reason: str = "") -> None:
        """Change state and report it at once."""
        self.state, self.reason = state, reason
        self.changed.set()

    def stop_wanted(self) -> None:
        """The Fleet wants it to go: DRAINING; the test ends it."""
        self.set_state(fleet_state("DRAINING"))

    def info(self) -> fleet.WorkerInfo:
        """What it announces."""
        model = fleet.ModelInfo(
            name=self.model, architecture="fake", tokenizer_hash=self.assets_hash, context_length=self.context_length,
            vocabulary_size=self.vocabulary_size, hidden_size=self.hidden_size, block_size=16, num_blocks=1024,
            max_sequences=self.max_sequences, dtype="float32", end_token_ids=self.end_token_ids,
            fingerprint=self.fingerprint, features=self.features, adapters=fake_adapters(self.adapters),
        )  # fmt: skip
        return fleet.WorkerInfo(
            worker_id=self.worker_id, address=self.address, deployment=self.deployment, accelerator=self.accelerator,
            device_name="fake", host="localhost", version="0", model=model,
        )  # fmt: skip

    def status(self) -> fleet.WorkerStatus:
        """What it reports now."""
        running = min(len(self.sequences), self.max_sequences)
        return fleet.WorkerStatus(
            state=self.state, reason=self.reason, running_sequences=running,
            waiting_sequences=len(self.sequences) - running, free_blocks=1024 - running, step=self._steps,
        )  # fmt: skip

    @property
    def assets_hash(self) -> str:
        """sha256 in hex of the tokenizer document; empty without one."""
        return sha256(self.assets).hexdigest() if self.assets else ""

    async def Session(self, requests: AsyncIterator[pb.SessionCommand], context: Any) -> AsyncIterator[pb.SessionEvent]:
        """Relay this session's events until the gateway leaves or the session is dropped."""
        session = FakeSession()
        self.sessions.append(session)
        session.events.put_nowait(self._event(session, []))
        reader = asyncio.create_task(self._read_commands(session, requests))
        reader.add_done_callback(lambda _: session.events.put_nowait(None))
        try:
            while True:
                try:
                    with Within(REPORT_SECONDS):
                        event = await session.events.get()
                except asyncio.TimeoutError:
                    event = pb.SessionEvent(status=self.status(), reported_starts=session.num_starts)
                if reader.done():
                    return
                if event is None:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
                else:
                    yield event
        finally:
            reader.cancel()
            self.sessions.remove(session)
            self._cancel_all(session)

    async def Status(self, request: pb.StatusRequest, context: Any) -> pb.StatusResponse:
        """Answer with info and status."""
        return pb.StatusResponse(info=self.info(), status=self.status())

    async def SetAdapters(self, request: pb.SetAdaptersRequest, context: Any) -> pb.SetAdaptersResponse:
        """Have these."""
        self.adapters = {each.name: each.source for each in request.adapters}
        self.changed.set()
        return pb.SetAdaptersResponse(adapters=fake_adapters(self.adapters))

    async def Drain(self, request: pb.WorkerDrainRequest, context: Any) -> pb.WorkerDrainResponse:
        """Take no new sequences; `exit` is left to the test."""
        self.set_state(fleet_state("DRAINING"))
        return pb.WorkerDrainResponse(running_sequences=len(self.sequences))

    async def _read_commands(self, session: FakeSession, requests: AsyncIterator[pb.SessionCommand]) -> None:
        async for command in requests:
            kind = command.WhichOneof("command")
            if kind == "hello":
                session.gateway_id = command.hello.gateway_id
            elif kind == "start":
                session.num_starts += 1
                self._start(session, command.start)
            elif kind == "cancel":
                self.cancelled.append(command.cancel.sequence_id)
                self.sequences.pop((session, command.cancel.sequence_id), None)

    def _start(self, session: FakeSession, start: pb.StartSequence) -> None:
        self.started.append(start)
        unready = (grpc.StatusCode.UNAVAILABLE.value[0], "The worker is not ready.")
        if refusal := self.refusal or (unready if self.state != fleet_state("READY") else None):
            code, broken = refusal[0], refusal[0] == grpc.StatusCode.INTERNAL.value[0]  # as engines' failed steps
            error = pb.SequenceError(code=code, message=refusal[1], broken=broken)
            delta = pb.SequenceDelta(sequence_id=start.sequence_id, error=error)
            session.events.put_nowait(self._event(session, [delta]))
            return
        ready_at = asyncio.get_running_loop().time() + self.first_token_seconds
        sequence = FakeSequence(start, session, ready_at, len(start.generated_ids))
        self.sequences[session, start.sequence_id] = sequence

    def _event(self, session: FakeSession, deltas: Sequence[pb.SequenceDelta]) -> pb.SessionEvent:
        return pb.SessionEvent(deltas=deltas, status=self.status(), reported_starts=session.num_starts)

    def _cancel_all(self, session: FakeSession) -> None:
        for key in [key for key in self.sequences if key[0] is session]:
            self.cancelled.append(key[1])
            del self.sequences[key]

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self.token_seconds or (0 if self.sequences else 0.002))
            now = asyncio.get_running_loop().time()
            batch = [each for each in list(self.sequences.values())[: self.max_sequences] if each.ready_at <= now]
            if batch:
                self._step(batch)

    def _step(self, batch: list[FakeSequence]) -> None:
        self._steps += 1
        news: dict[FakeSession, list[pb.SequenceDelta]] = {}
        for sequence in batch:
            delta = self._advance(sequence)
            news.setdefault(sequence.session, []).append(delta)
            if delta.finish_reason:
                del self.sequences[sequence.session, delta.sequence_id]
            if self._drop_after is not None:
                self._drop_after -= len(delta.token_ids)
        for session, deltas in news.items():
            session.events.put_nowait(self._event(session, deltas))
        if self._drop_after is not None and self._drop_after <= 0:
            self._drop_after = None
            self.drop_sessions()

    def _advance(self, sequence: FakeSequence) -> pb.SequenceDelta:
        start = sequence.start
        delta = pb.SequenceDelta(sequence_id=start.sequence_id)
        if start.pooling:
            delta.embedding.extend(fake_embedding(start.prompt_ids, self.hidden_size))
            delta.finish_reason = inference.FINISH_REASON_STOP
            return delta
        token = self.tokens(fake_adapted(start.prompt_ids, start.adapter), sequence.generated, start.choice)
        if token in start.stop_token_ids or (token in self.end_token_ids and not start.ignore_eos):
            delta.finish_reason = inference.FINISH_REASON_STOP
            return delta
        if start.HasField("prompt_logprobs") and sequence.generated == 0:
            for index in range(1, len(start.prompt_ids)):
                ids = range(start.prompt_logprobs)
                delta.prompt_logprobs.add(logprob=-0.5 * index, top_ids=ids, top_logprobs=[-1.0] * len(ids))
        delta.token_ids.append(token)
        sequence.generated += 1
        if start.HasField("logprobs"):
            alternatives = [(token + k) % self.vocabulary_size for k in range(start.logprobs)]
            logprobs = [-0.25 * (k + 1) for k in range(start.logprobs)]
            delta.logprobs.add(logprob=-0.25, top_ids=alternatives, top_logprobs=logprobs)
        if sequence.generated >= start.max_tokens:
            delta.finish_reason = inference.FINISH_REASON_LENGTH
        return delta


def fleet_state(name: str) -> "fleet.WorkerState.ValueType":
    """The number of WORKER_STATE_<name>."""
    return fleet.WorkerState.Value(f"WORKER_STATE_{name}")
