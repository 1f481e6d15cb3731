"""What passes from the start of a worker alone to its first token, and what its processes compute meanwhile.

    python -m bench.start [MODEL] [--rounds N]
    python -m bench.start --accelerator cuda --shape llama3_8b --rounds 3    # random weights

A worker of its own loads the model (without one: the bundled SmolLM2) and answers a request of four tokens; the first
round, which brings files into the page cache and compiles kernels, is left out of the medians. Parts, in the order of
time:

    worker    from its start until it takes connections
    imports   the engine's process, until it begins to read the model: nearly all of it is torch
    model     reading and packing the weights, the canary
    token     the request, until its first token

CPU seconds are user's and system's of both processes, at each part's end less at its beginning.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from bench.card.shapes import SHAPES, write_model
from bench.command import parser_of, positive, run
from bench.report import Row, publish
from tests.support.running_worker import REAL, RunningWorker

from polyfleet.cli.stack.settings import bundled_model
from polyfleet.engine.choosing.machines import open_machine
from polyfleet.v1 import fleet_pb2 as fleet
from polyfleet.v1 import worker_pb2 as pb

PARTS = ("worker", "imports", "model", "token")
PAUSE = 0.005  # between two looks


class Clock:
    """Time that passed and that processes computed, from mark to mark."""

    def __init__(self) -> None:
        self.parts: list[tuple[float, float]] = []
        self._wall, self._cpu = time.monotonic(), 0.0

    def mark(self, worker: RunningWorker) -> None:
        """A part has ended."""
        process = psutil.Process(worker.process.pid)
        times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
        wall, cpu = time.monotonic(), sum(each.user + each.system for each in times)
        self.parts.append((wall - self._wall, cpu - self._cpu))
        self._wall, self._cpu = wall, cpu


async def one_round(model: Path, accelerator: str = "cpu") -> list[tuple[float, float]]:
    """Wall and CPU seconds of each part."""
    options = ["--accelerator", accelerator, "--kv-cache-tokens", "2048"]
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock()
        running = RunningWorker(Path(folder), *options, model=str(model), wait_ready=False, command=REAL)
        async with running as worker:
            clock.mark(worker)
            while (status := (await worker.status()).status).state != fleet.WORKER_STATE_READY:
                if len(clock.parts) == 1 and status.load_progress > 0:
                    clock.mark(worker)
                await asyncio.sleep(PAUSE)
            clock.mark(worker)
            async with worker.session() as session:
                await session.start(pb.StartSequence(sequence_id="one", prompt_ids=[1, 2, 3, 4], max_tokens=1))
                await session.run_to_end()
                clock.mark(worker)
        return clock.parts


def rows(rounds: list[list[tuple[float, float]]]) -> Iterator[Row]:
    """Medians of each part, and of all together, by the clock and by CPU seconds."""
    for side, unit in enumerate(("s", "s CPU")):
        for number, part in enumerate(PARTS):
            yield Row(f"start_{part}", statistics.median(each[number][side] for each in rounds), unit)
        yield Row("start_all", statistics.median(sum(part[side] for part in each) for each in rounds), unit)


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("model", nargs="?", type=Path, help="GGUF file or Hugging Face folder (default: SmolLM2)")
    parser.add_argument("--rounds", type=positive, default=5, help="(default: 5)")
    parser.add_argument("--accelerator", default="cpu", help="whose device the worker takes (default: cpu)")
    parser.add_argument("--shape", choices=tuple(SHAPES), help="random weights in bfloat16 instead of a model's")
    given = parser.parse_args()
    if given.model and not given.model.exists():
        parser.error(f"{given.model}: there is no such file or folder")
    with tempfile.TemporaryDirectory() as folder:
        if given.shape:
            path = write_model(SHAPES[given.shape], Path(folder), open_machine(given.accelerator)[0].device)
        else:
            path = given.model or bundled_model()
        asyncio.run(one_round(path, given.accelerator))
        publish(rows([asyncio.run(one_round(path, given.accelerator)) for _ in range(given.rounds)]), given.json)


if __name__ == "__main__":
    run(main)
