"""What a fleet at rest costs: CPU time and memory of each process of `polyfleet serve` while nobody asks anything.

    python -m bench.rest --rounds 3

Ray's actors and its own processes are told apart from Polyfleet's: an actor of ours runs in a process of Ray's, with
some thirty of its threads. CPU time comes from the kernel's accounts, so that a busy machine adds little: a lost cache.
"""

import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import psutil
from bench.command import parser_of, positive, run
from bench.report import Row, publish
from tests.support.ports import free_addresses
from tests.support.serve_process import ServeProcess, command_line

SETTLE_SECONDS = 15.0
OWN = {  # by what stands in the command line
    "polyfleet.serving.engine_process": "engine",
    "polyfleet.serving": "worker",
    "polyfleet.gateway": "gateway",
    "polyfleet.text.process": "gateway's tokenizer",
    "polyfleet.console": "console",
    "polyfleet.scheduler": "Ray's driver",
    "polyfleet.cli": "polyfleet serve",
}
ACTORS = {"ray::SchedulerActor": "scheduler (an actor)", "ray::Launcher": "launcher (an actor)"}
RAYS = {"raylet": "raylet", "gcs_server": "gcs_server", "ray::": "agents"}


def what(process: psutil.Process) -> tuple[int, str]:
    """Whose process it is (0: Polyfleet's, 1: an actor, 2: Ray's), and which."""
    command = command_line(process)
    for owner, names in enumerate((OWN, ACTORS, RAYS)):
        for mark, name in names.items():
            if mark in command:
                return owner, name
    return 2, "others"


def cpu_seconds(process: psutil.Process) -> float:
    """User and system time so far; 0 when it has gone."""
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def megabytes(process: psutil.Process) -> float:
    """Its proportional share of memory; 0 when it has gone."""
    try:
        return float(process.memory_full_info().pss) / 1e6
    except psutil.NoSuchProcess:
        return 0.0


def main() -> None:
    """Start a stack, let it rest, print a table."""
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=positive, default=3, help="(default: 3)")
    parser.add_argument("--seconds", type=positive, default=60, help="of a round (default: 60)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        port = free_addresses(1)[0].rpartition(":")[2]
        serve = ServeProcess(Path(folder), "--console-port", port).start()
        try:
            serve.wait_ready()
            time.sleep(SETTLE_SECONDS)
            shares = defaultdict[tuple[int, str], list[float]](list)
            for _ in range(given.rounds):
                for key, share in round_of(serve, given.seconds).items():
                    shares[key].append(share)
            memory = defaultdict[tuple[int, str], float](float)
            for process in serve.processes():
                memory[what(process)] += megabytes(process)
            publish(rows(shares, memory), given.json)
        finally:
            serve.stop()


def round_of(serve: ServeProcess, seconds: float) -> dict[tuple[int, str], float]:
    """Per cent of a core that each kind of process took for so long."""
    before = {process: cpu_seconds(process) for process in serve.processes()}
    began = time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    found = defaultdict[tuple[int, str], float](float)
    for process, earlier in before.items():
        found[what(process)] += 100 * (cpu_seconds(process) - earlier) / took
    return found


def rows(shares: dict[tuple[int, str], list[float]], memory: dict[tuple[int, str], float]) -> Iterator[Row]:
    """Medians by process and by owner."""
    for owner, title in enumerate(("Polyfleet's processes", "Polyfleet's actors", "Ray's processes")):
        keys = sorted(key for key in shares if key[0] == owner)
        for key in keys:
            yield Row(key[1], statistics.median(shares[key]), "% of a core")
            yield Row(key[1], memory[key], "MB")
        rounds = zip(*(shares[key] for key in keys), strict=True)
        yield Row(f"all {title}", statistics.median(sum(each) for each in rounds), "% of a core")
        yield Row(f"all {title}", sum(memory[key] for key in keys), "MB")


if __name__ == "__main__":
    run(main)
