"""What placing one request costs, and what keeping its knowledge up to date does: CPU time of one core.

    python -m bench.placement [--json FILE]

A placement hashes a prompt of 2,048 tokens into grains, looks them up in a map of a million grains, and chooses by
prefix, load and cost; before each one a worker reports. Upkeep is what a gateway spends on 1,000 workers, of which 20 a
second change in the scheduler's snapshots, and on the prompts that other gateways begin, 1,000 grains a second on each
of 100 workers.
"""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from unittest import mock

from bench.command import parser_of, run
from bench.report import Row, compare, publish
from tests.support.undialled import undialled

from polyfleet.gateway.fleet.session import Session
from polyfleet.gateway.fleet.view import FleetView
from polyfleet.placement.fleet import PlacementRequest, Worker, WorkerState
from polyfleet.placement.place import place
from polyfleet.placement.policy import Policy
from polyfleet.placement.pool import FleetIndex
from polyfleet.placement.prefixes import GRAIN_BYTES, PrefixMap
from polyfleet.scheduler.fleet.snapshot_feed import Changes
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.wire.hashing import grain_numbers

GRAINS, PROMPT_TOKENS, PLACEMENTS, CHANGES = 1_000_000, 2048, 300, 20
CHAIN = PROMPT_TOKENS // 64
POLICY = Policy(cost_weight=1000.0, costs={"cuda": 2.0, "cpu": 0.5}, stickiness_weight=0.1)


def worker(number: int) -> Worker:
    """One of many unlike workers."""
    speed = (20.0, 5.0, 1.0)[number % 3]
    return Worker(
        *(f"w-{number:04}", "10.0.0.1:5000", "m", ("cuda", "rocm", "cpu")[number % 3], WorkerState.READY),
        context_length=8192,
        num_blocks=8192,
        free_blocks=4000 + number % 4000,
        max_sequences=64,
        running_sequences=number % 40,
        waiting_prefill_tokens=number % 5000,
        prefill_tokens_per_second=500.0 * speed,
        decode_tokens_per_second=5.0 * speed,
        step_seconds=0.1 / speed,
        step_seconds_per_sequence=0.002 / speed,
    )


def filled_map(num_workers: int) -> PrefixMap:
    """A map of GRAINS grains, in chains that part behind their first eighth."""
    prefixes, draw = PrefixMap(GRAINS), random.Random(1)
    shared = [tuple(draw.getrandbits(64) for _ in range(CHAIN // 8)) for _ in range(50)]
    while prefixes.num_grains < GRAINS - CHAIN:
        chain = (*draw.choice(shared), *(draw.getrandbits(64) for _ in range(CHAIN - CHAIN // 8)))
        prefixes.learn(f"w-{draw.randrange(num_workers):04}", chain)
    return prefixes


def placement_seconds(num_workers: int) -> list[float]:
    """CPU seconds of each of PLACEMENTS placements; three of four prompts have a beginning that workers hold."""
    draw = random.Random(2)
    prefixes, index = filled_map(num_workers), FleetIndex(POLICY, map(worker, range(num_workers)))
    beginnings = [tuple(draw.randrange(50_000) for _ in range(PROMPT_TOKENS)) for _ in range(8)]
    for number, ids in enumerate(beginnings):
        for each in range(number, num_workers, 5):
            prefixes.learn(f"w-{each:04}", grain_numbers(ids))
    taken = []
    for number in range(PLACEMENTS):
        known = draw.choice(beginnings)[: PROMPT_TOKENS // 2] if number % 4 else ()
        ids = (*known, *(draw.randrange(50_000) for _ in range(PROMPT_TOKENS - len(known))))
        report = replace(worker(number % num_workers), running_sequences=draw.randrange(40))
        begun = time.thread_time()
        index.put(report)
        grains = grain_numbers(ids)
        cached = prefixes.cached_tokens(grains)
        request = PlacementRequest("m", len(ids), 256, key=str(number), cached_tokens=cached, fingerprint="")
        chosen = place(request, index).worker
        taken.append(time.thread_time() - begun)
        assert chosen is not None
    return taken


def news_seconds() -> float:
    """CPU seconds for one second's news of 100 workers, 1,000 grains each, in a full map."""
    prefixes, draw = filled_map(100), random.Random(3)
    chains = [[draw.getrandbits(64) for _ in range(CHAIN)] for _ in range(100 * 1000 // CHAIN)]

    def learn() -> None:
        for number, chain in enumerate(chains):
            prefixes.learn(f"w-{number % 100:04}", chain)

    return cpu(learn)


def snapshots(num_workers: int) -> list[bytes]:
    """A whole snapshot on the wire, and CHANGES that follow, in each of which another worker's load has changed."""
    model = pb.ModelInfo(name="m", context_length=8192, vocabulary_size=128_000, num_blocks=8192, max_sequences=64)
    model.fingerprint = model.tokenizer_hash = "0123456789abcdef" * 4
    workers, taken = [], []
    for number in range(num_workers):
        info = pb.WorkerInfo(worker_id=f"w-{number:04}", address="10.0.0.1:5000", accelerator="cuda", model=model)
        status = pb.WorkerStatus(state=pb.WORKER_STATE_READY, free_blocks=4000, decode_tokens_per_second=99.5)
        workers.append(pb.FleetWorker(info=info, status=status))
    changes = Changes()
    for version in range(CHANGES + 1):
        workers[version * 37 % num_workers].status.running_sequences = version
        whole = pb.FleetSnapshot(version=version, workers=workers)
        told = changes.since_last(whole, {each.info.worker_id: each.SerializeToString() for each in workers})
        taken.append(told.SerializeToString())
    return taken


def upkeep_seconds() -> float:
    """CPU seconds of a gateway for one second's CHANGES snapshots of 1,000 workers that it is connected to."""

    def read() -> None:
        for each in received:
            view.apply(pb.FleetSnapshotParts.FromString(each))
            view.fleet()

    received = snapshots(1000)
    with mock.patch.object(Session, "open", lambda session: setattr(session, "connected", True)):
        view = FleetView("bench", undialled)
        read()
        received = received[1:]
        return cpu(read)


def cpu(work: Callable[[], object]) -> float:
    """CPU seconds of this thread, the median of five runs."""
    taken = []
    for _ in range(5):
        begun = time.thread_time()
        work()
        taken.append(time.thread_time() - begun)
    return statistics.median(taken)


def rows() -> list[Row]:
    """One for each figure."""
    hundred, thousand = placement_seconds(100), placement_seconds(1000)
    figures = (
        ("place_100_p50", 1e3 * statistics.median(hundred), "ms", "asked", 0.3),
        ("place_100_p95", 1e3 * statistics.quantiles(hundred, n=20)[-1], "ms", "asked", 1.0),
        ("place_1000_p95", 1e3 * statistics.quantiles(thousand, n=20)[-1], "ms", "asked", 3.0),
        ("prefix_news_core_share", news_seconds(), "ratio", "asked", 0.1),
        ("upkeep_1000", upkeep_seconds(), "ratio", "asked", 0.03),
        ("snapshot_bytes_1000", statistics.mean(map(len, snapshots(1000)[1:])), "B", "whole", len(snapshots(1000)[0])),
        ("prefix_grain_bytes", float(GRAIN_BYTES), "B", "", None),
    )
    return [compare(*each, lower_is_better=True) for each in figures]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = parser_of(__doc__)
    options = parser.parse_args(arguments)
    publish(rows(), options.json)
    return 0


if __name__ == "__main__":
    run(main)
