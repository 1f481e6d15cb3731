"""The engine alone, in a thread of this process: what a gateway and its worker are compared with."""

import asyncio
import threading
import time
from pathlib import Path
from queue import SimpleQueue

from polyfleet.benchmark.work import Job, Outcome
from polyfleet.engine.engine import Engine
from polyfleet.wire.answers import SequenceUpdate
from polyfleet.wire.ids import new_id
from polyfleet.wire.limits import FieldError
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import SequenceRequest


class EngineTarget:
    """An Engine with a worker's defaults. Jobs must hold token ids; `address` is the model's file name."""

    def __init__(self, name: str, model: str) -> None:
        self.name = name
        self.address = Path(model).name
        self._model = model
        self._added: SimpleQueue[SequenceRequest | None] = SimpleQueue()
        self._updates: dict[str, asyncio.Queue[SequenceUpdate]] = {}

    async def run(self, job: Job, due: float) -> Outcome:
        """See Target."""
        request = SequenceRequest(new_id("bench"), job.token_ids, max_tokens=job.max_tokens, ignore_eos=True)
        updates = self._updates[request.sequence_id] = asyncio.Queue()
        self._added.put(request)
        first = last = 0.0
        tokens = 0
        while True:
            update = await updates.get()
            if update.error:
                return Outcome(due, error=update.error)
            if update.tokens:
                last = time.monotonic()
                first = first or last
                tokens += len(update.tokens)
            if update.finish_reason:
                del self._updates[request.sequence_id]
                return Outcome(due, first or last, last, time.monotonic(), len(job.token_ids), tokens)

    async def __aenter__(self) -> "EngineTarget":
        self._loop = asyncio.get_running_loop()
        self._engine = await asyncio.to_thread(Engine.load, self._model, EngineOptions(device="cpu"))
        self._thread = threading.Thread(target=self._step, name="engine", daemon=True)
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._added.put(None)
        await asyncio.to_thread(self._thread.join)

    def _step(self) -> None:
        """Take what was added and step; sleep on the queue while there is nothing to do."""
        while True:
            while not (self._engine.has_work and self._added.empty()):
                request = self._added.get()
                if request is None:
                    return
                self._add(request)
            self._tell(self._engine.step())

    def _add(self, request: SequenceRequest) -> None:
        try:
            self._engine.add(request)
        except FieldError as error:
            self._tell([SequenceUpdate(request.sequence_id, error=str(error))])

    def _tell(self, updates: list[SequenceUpdate]) -> None:
        self._loop.call_soon_threadsafe(self._deliver, updates)

    def _deliver(self, updates: list[SequenceUpdate]) -> None:
        for update in updates:
            self._updates[update.sequence_id].put_nowait(update)
