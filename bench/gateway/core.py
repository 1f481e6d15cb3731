"""What the gateway's own Python takes of a stream, in its parts: no connection, no other process but the tokenizer's.

    python -m bench.gateway.core

64 streams at once, their worker's steps put into its session by hand, their messages serialised and thrown away. CPU
microseconds of the event loop's thread, of the fastest round: `begin` (a call to its sequence's start: key, validation,
prompt, placement), `token` (a step's news to a message), `end` (account, metrics, log). `begin_ids` has token ids for
a prompt, and so leaves out what asking the tokenizer's process costs.
"""

import asyncio
import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from bench.command import parser_of
from bench.report import Row, publish
from tests.support.gateway_rig import MODEL, GatewayRig, text_worker
from tests.support.keyed_rig import KEY, keys_file

from polyfleet.gateway.fleet.session import Session
from polyfleet.gateway.grpc.service import InferenceService
from polyfleet.process.logs import JsonFormatter
from polyfleet.v1 import inference_pb2 as pb
from polyfleet.v1 import worker_pb2
from polyfleet.wire.auth import bearer_metadata

STREAMS, ROUNDS, SHORT, LONG = 64, 12, 32, 96  # tokens of a stream
TURNS = 3  # of the event loop, until each stream has written a token


class Context:
    """A call whose client takes everything at once."""

    def __init__(self) -> None:
        self.messages = 0

    def invocation_metadata(self) -> Any:
        """With a key."""
        return bearer_metadata(KEY)

    def peer(self) -> str:
        """Any."""
        return "ipv4:127.0.0.1:1"

    def time_remaining(self) -> float:
        """A deadline, as most clients have one."""
        return 60.0

    async def write(self, message: pb.GenerateResponse) -> None:
        """As gRPC begins to."""
        message.SerializeToString()
        self.messages += 1


class Cost(NamedTuple):
    """CPU seconds of a round's streams."""

    begin: float
    rest: float


class Core:
    """A gateway's service, and the session with its one worker."""

    def __init__(self, service: InferenceService, session: Session) -> None:
        self._service, self._session = service, session
        self._status = session._heard
        self._started: list[str] = []
        session._send = self._sent  # type: ignore[method-assign]

    def _sent(self, command: worker_pb2.SessionCommand) -> None:
        if command.HasField("start"):
            self._started.append(command.start.sequence_id)

    async def round(self, prompt: dict[str, Any], tokens: int) -> Cost:
        """So many streams of so many tokens."""
        request = pb.GenerateRequest(model=MODEL, max_tokens=tokens, ignore_eos=True, **prompt)
        contexts, before = [Context() for _ in range(STREAMS)], time.thread_time()
        calls = [asyncio.create_task(self._service.Generate(request, context)) for context in contexts]
        while len(self._started) < STREAMS:
            await asyncio.sleep(0.001)
        begin = time.thread_time() - before
        events = [self._step(at, tokens) for at in range(tokens)]
        self._started.clear()
        before = time.thread_time()
        for event in events:
            self._session._receive(worker_pb2.SessionEvent.FromString(event))
            for _ in range(TURNS):
                await asyncio.sleep(0)
        await asyncio.gather(*calls)
        rest = time.thread_time() - before
        assert all(each.messages == tokens for each in contexts)
        return Cost(begin, rest)

    def _step(self, at: int, tokens: int) -> bytes:
        event = worker_pb2.SessionEvent(status=self._status, reported_starts=0)
        for name in self._started:
            delta = event.deltas.add(sequence_id=name, token_ids=[100 + at * 7 % 400])
            if at == 0:
                delta.cached_tokens, delta.queue_seconds = 0, 0.001
            if at == tokens - 1:
                delta.finish_reason = pb.FINISH_REASON_LENGTH
        return event.SerializeToString()


async def measure() -> list[Row]:
    """The rows."""
    with tempfile.TemporaryDirectory() as folder:
        async with GatewayRig(config={"keys_file": keys_file(Path(folder))}) as rig:
            await rig.add(text_worker("w-1", max_sequences=1024, context_length=4096))
            core = Core(InferenceService(rig.gateway.grpc._parts), rig.gateway.view.sessions["w-1"])
            text, ids = {"text": "The quick brown fox jumps over the lazy dog."}, {"token_ids": range(100, 116)}
            await core.round(text, SHORT)
            costs = {n: [await core.round(text, n) for _ in range(ROUNDS)] for n in (SHORT, LONG)}
            of_ids = [await core.round(ids, SHORT) for _ in range(ROUNDS)]
    short, long = (min(each.rest for each in costs[n]) / STREAMS for n in (SHORT, LONG))
    token = (long - short) / (LONG - SHORT)
    begin = min(each.begin for some in costs.values() for each in some) / STREAMS
    figures = {"begin": begin, "begin_ids": min(each.begin for each in of_ids) / STREAMS, "token": token}
    figures |= {"end": short - SHORT * token, "stream": begin + short}
    return [Row(f"gateway_core_{name}", seconds * 1e6, "us") for name, seconds in figures.items()]


def main() -> int:
    """Run and print."""
    given = parser_of(__doc__).parse_args()
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        log = logging.StreamHandler(nowhere)
        log.setFormatter(JsonFormatter())
        logging.basicConfig(level=logging.INFO, handlers=[log])
        publish(asyncio.run(measure()), given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
