"""How fast an engine whose steps take long gives what they complete: steps of 50 ms, each of 1,024 tokens of a prompt.

    python -m bench.giving [--tokens N] [--step-ms MS]

A real Engine over an executor that computes nothing and waits instead; keys and values of Llama-3-8B's shape in float16
go through shared memory to a second engine, whose steps take 10 ms. Beside it stands what the steps complete.
"""

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from bench.command import above_zero, parser_of, positive, run
from bench.overhead import NoExecutor
from bench.report import Row, compare, publish
from numpy.typing import NDArray

from polyfleet.engine.choosing.sizing import capacity_of
from polyfleet.engine.engine import Engine
from polyfleet.engine.executor import Pending, StepOutput
from polyfleet.kvcache.travelling import CHUNK_BYTES
from polyfleet.models.config import ModelConfig
from polyfleet.transfer.room import TransferRoom
from polyfleet.transfer.settings import TransferSettings
from polyfleet.wire.hashing import prefix_root
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import SequenceRequest
from polyfleet.wire.tickets import TransferOffer, source_of

LAYERS, HEADS, WIDTH, BLOCK_TOKENS, STEP_TOKENS = 32, 8, 128, 16, 1024
TOKEN_BYTES = LAYERS * 2 * HEADS * WIDTH * 2


class WaitingExecutor(NoExecutor):
    """Steps take `seconds`; blocks are as large as real ones, and always hold the same."""

    def __init__(self, seconds: float) -> None:
        super().__init__(1)
        self._seconds = seconds
        self._ones = np.ones((2, STEP_TOKENS, HEADS, WIDTH), np.float16)

    def collect(self, pending: Pending, timeout: float) -> StepOutput:
        """As late as a step would be over."""
        time.sleep(self._seconds)
        return super().collect(pending, timeout)

    def export_blocks(self, blocks: Sequence[int]) -> tuple[NDArray[Any], ...]:
        """Ones, which cost this thread nothing: on a card they come over the bus."""
        return (self._ones[:, : len(blocks) * BLOCK_TOKENS],) * LAYERS


def engine(seconds: float, tokens: int) -> tuple[Engine, TransferRoom]:
    """One, and its room."""
    context = tokens + BLOCK_TOKENS
    config = ModelConfig("llama", "nothing", 1000, 4, 1, 1, 1, 2, 4, 1e-5, (1.0,), context, True)
    options = EngineOptions(
        context_length=context,
        kv_cache_tokens=2 * tokens,
        max_sequences=2,
        step_tokens=STEP_TOKENS,
        step_seconds=60.0,
        block_size=BLOCK_TOKENS,
    )
    executor, room = WaitingExecutor(seconds), TransferRoom(TransferSettings("127.0.0.1:0"))
    executor.allocate(capacity_of(options))
    made = Engine(executor, config, options, fingerprint="model")
    made.attend(room)
    return made, room


def serve(giver: Engine, over: threading.Event, given: list[int]) -> None:
    """Step it where there is work; how many tokens each step gave."""
    while not over.wait(0.0005):
        while giver.has_work and not over.is_set():
            before = giver.status().given_tokens
            giver.step()
            given.append(giver.status().given_tokens - before)


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--tokens", type=positive, default=8192, help="of the prompt (default: 8192)")
    parser.add_argument("--step-ms", type=above_zero, default=50.0, help="of the giving engine (default: 50)")
    given = parser.parse_args()
    giver, there = engine(given.step_ms / 1000, given.tokens)
    taker, _ = engine(0.01, given.tokens)
    offer = TransferOffer(f"127.0.0.1:{there.port}", there.local, there.key)
    source = source_of(offer, prefix_root("model"), given.tokens, 60.0)
    over, steps = threading.Event(), list[int]()
    thread = threading.Thread(target=serve, args=(giver, over, steps))
    thread.start()
    began = time.perf_counter()
    taker.add(SequenceRequest("one", tuple(n % 999 for n in range(given.tokens)), max_tokens=1, prefix_source=source))
    while taker.has_work:
        taker.step()
    seconds = time.perf_counter() - began
    over.set()
    thread.join()
    status = taker.status()
    if not status.prefills_apart:
        raise SystemExit("the prompt did not come")
    tokens = status.fetched_tokens / seconds
    publish(
        [
            compare("giving_arrived", tokens, "tokens/s", "completed", STEP_TOKENS / given.step_ms * 1000),
            Row("giving_arrived", tokens * TOKEN_BYTES / CHUNK_BYTES, "chunks/s"),
            Row("giving_before_a_step", max(steps), "tokens at most"),
        ],
        given.json,
    )


if __name__ == "__main__":
    run(main)
