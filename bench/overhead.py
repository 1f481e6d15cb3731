"""What a step costs beside the model: composing, assembling, applying, encoding; the executor computes nothing.

Rows overhead_1, overhead_32 and overhead_256: milliseconds of processor time a step, with so many sequences that decode
greedily. A figure is the mean over as many steps as a block has tokens, so that one of them publishes and takes blocks;
of these the median of a run, and of the runs the best: what else the machine does only adds. Row overhead_256_turns is
the same where sequences come and go: each has 100 to 300 tokens, and where one ends another one begins.
"""

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, cycle
from statistics import median
from typing import Any

import numpy as np
from bench.report import Row
from numpy.typing import NDArray

from polyfleet.engine.choosing.sizing import capacity_of
from polyfleet.engine.engine import Engine
from polyfleet.engine.executor import Capacity, Footprint, Pending, StepOutput
from polyfleet.engine.step.plan import StepPlan
from polyfleet.models.config import ModelConfig
from polyfleet.sampling.masks import Masks
from polyfleet.serving.engine_pacing import Reports
from polyfleet.serving.messages import StepNews, frame
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import SequenceRequest

SIZES = (1, 32, 256)
PROMPT_TOKENS, BLOCK_TOKENS, BLOCKS = 16, 16, 12
TURNS = 100, 300  # tokens of a sequence, where they come and go
VOCABULARY = 1000


class NoPending(Pending):
    """Counts of a step."""

    __slots__ = ("num_draws", "num_sequences")

    def __init__(self, num_sequences: int, num_draws: int) -> None:
        self.num_sequences, self.num_draws = num_sequences, num_draws


class NoExecutor:
    """Draws tokens out of the air, at no cost."""

    name = "nothing"
    dtype = "float32"

    def __init__(self, depth: int) -> None:
        self.depth = depth

    def measure(self) -> Footprint:
        """Nothing is held."""
        return Footprint(0, 1)

    def allocate(self, capacity: Capacity) -> None:
        """All that it will ever give."""
        count = capacity.max_sequences
        self._tokens = cycle(np.random.default_rng(0).integers(VOCABULARY, size=(61, count), dtype=np.int64))
        self._faults = np.zeros(capacity.max_sequences, dtype=np.int8)

    def launch(self, plan: StepPlan) -> NoPending:
        """Remember how much was asked."""
        return NoPending(len(plan.slots), plan.num_draws)

    def draw(self, pending: Pending, masks: Masks | None = None) -> None:
        """There are no logits."""

    def collect(self, pending: Pending, timeout: float) -> StepOutput:
        """The next tokens in the air."""
        assert isinstance(pending, NoPending)
        return StepOutput(next(self._tokens)[: pending.num_draws], self._faults[: pending.num_sequences])

    def export_blocks(self, blocks: Sequence[int]) -> tuple[NDArray[Any], ...]:
        """No cache."""
        return ()

    def import_blocks(self, blocks: Sequence[int], caches: Sequence[NDArray[Any]]) -> None:
        """No cache."""

    def implementations(self) -> Mapping[str, str]:
        """No op."""
        return {}

    def close(self) -> None:
        """Nothing is held."""


def measure(repeats: int) -> Iterator[Row]:
    """The rows; the best of `repeats` runs."""
    for size in SIZES:
        yield Row(f"overhead_{size}", min(_run(size) for _ in range(repeats)), "ms")
    yield Row(f"overhead_{SIZES[-1]}_turns", min(_turns(SIZES[-1]) for _ in range(repeats)), "ms")


def _turns(size: int) -> float:
    """Milliseconds a step, the median over blocks, once sequences have come to end one by one."""
    engine, lengths, reports = _engine(size), random.Random(0), Reports()
    names = count()

    def add() -> None:
        number = next(names)
        prompt = tuple((number * 31 + position) % VOCABULARY for position in range(PROMPT_TOKENS))
        tokens = lengths.randrange(*TURNS)
        engine.add(SequenceRequest(f"sequence-{number:04}-of-the-benchmark", prompt, max_tokens=tokens))

    for _ in range(size):
        add()
    blocks = []
    for _ in range(2 * TURNS[1] // BLOCK_TOKENS):
        spent = 0.0
        for _ in range(BLOCK_TOKENS):
            seconds, ended = _step(engine, reports)
            spent += seconds
            for _ in range(ended):
                add()
        blocks.append(spent)
    return median(blocks[TURNS[1] // BLOCK_TOKENS :]) / BLOCK_TOKENS * 1000


def _run(size: int) -> float:
    """Milliseconds a step, the median over blocks."""
    engine = _engine(size)
    for number in range(size):
        prompt = tuple((number * 31 + position) % VOCABULARY for position in range(PROMPT_TOKENS))
        engine.add(SequenceRequest(f"sequence-{number:04}-of-the-benchmark", prompt, max_tokens=1000))
    reports = Reports()
    _block(engine, reports)
    return median(_block(engine, reports) for _ in range(BLOCKS)) / BLOCK_TOKENS * 1000


def _block(engine: Engine, reports: Reports) -> float:
    """Seconds of processor time that a block's steps take, with all that the engine's process says of them."""
    return sum(_step(engine, reports)[0] for _ in range(BLOCK_TOKENS))


def _step(engine: Engine, reports: Reports) -> tuple[float, int]:
    """Seconds of processor time that a step takes, and how many sequences ended in it."""
    started = time.thread_time()
    updates = engine.step()
    frame(StepNews(updates, [], reports.status(engine, commanded=False), None))
    return time.thread_time() - started, sum(update.finish_reason is not None for update in updates)


def _engine(size: int) -> Engine:
    rope = (1.0,)
    config = ModelConfig("llama", "nothing", VOCABULARY, 4, 1, 1, 1, 2, 4, 1e-5, rope, 1024, True)
    options = EngineOptions(
        dtype="float32",
        context_length=1024,
        kv_cache_tokens=1024 * size,
        max_sequences=size,
        step_tokens=max(2048, 2 * size),
        block_size=BLOCK_TOKENS,
    )
    executor = NoExecutor(depth=1)
    executor.allocate(capacity_of(options))
    return Engine(executor, config, options)
