"""How fast keys and values travel between two processes: through shared memory and over TCP, beside a plain copy.

    python -m bench.transfer [--mebibytes N] [--repeats N] [--json FILE]

Two processes of one host, a worker's TransferRoom in each; rounds alternate, and every ratio is the median of those of
the rounds. Through shared memory the receiver reads what it needs where it lies, so only the sender copies. Beside the
clock's rate stands that by CPU seconds of the busier process: what the transfer reaches where both have a core of their
own; and what each of the two spends on a GB, the larger of which bounds it.
"""

import argparse
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from statistics import median
from typing import NamedTuple

import numpy as np
from bench.command import parser_of, positive
from bench.report import Row, compare, publish

from polyfleet.graph.kernel_graph import PerToken
from polyfleet.kvcache.portable import KvLayout
from polyfleet.kvcache.travelling import Leaving, Wanted, chunk_tokens, chunks_on_way
from polyfleet.transfer.room import TransferRoom
from polyfleet.transfer.settings import TransferSettings
from polyfleet.wire.hashing import prefix_root
from polyfleet.wire.tickets import TransferOffer, source_of

LAYOUT = KvLayout("model", tuple(PerToken(8, 128) for _ in range(32)), "float16")  # Llama-3-8B's
GRAIN = 16
CHUNKS = chunks_on_way(LAYOUT, GRAIN)


def serve() -> None:
    """Give every peer as many tokens as it has ids, from as much memory as may be on its way."""
    room = TransferRoom(TransferSettings("127.0.0.1:0"))
    print(room.port, room.local, room.key.hex(), flush=True)
    most = chunk_tokens(LAYOUT, GRAIN)
    chunks = [tuple(np.ones((2, most, 8, 128), np.float16) for _ in LAYOUT.caches) for _ in range(CHUNKS)]
    while True:
        wait(room)
        for inquiry in room.new_inquiries():
            inquiry.state(LAYOUT)
            while inquiry.first < len(inquiry.token_ids) and not inquiry.gone:
                if inquiry.room:
                    caches = chunks[inquiry.first // most % CHUNKS]
                    size = most * LAYOUT.token_bytes
                    inquiry.give(Leaving(inquiry.first, most, size, partial(tuple, caches)))
                else:
                    wait(room)
            inquiry.end()


def wait(room: TransferRoom) -> None:
    """Until there is news, as an idle engine does."""
    select.select([room.descriptor], [], [], 1.0)
    room.clear()


class Spent(NamedTuple):
    """Seconds that a GB takes: by the clock, and of the CPU of the side that sends and the one that receives."""

    clock: float
    sending: float
    receiving: float

    @property
    def cpu(self) -> float:
        """Of the busier side."""
        return max(self.sending, self.receiving)


def fetch(room: TransferRoom, offer: TransferOffer, tokens: int, peer: int) -> Spent:
    """One transfer's."""
    wanted = Wanted(LAYOUT, tuple(range(tokens)), b"", "", 0, GRAIN)
    began, mine, its = time.perf_counter(), time.process_time(), cpu_seconds(peer)
    under_way = room.fetch(source_of(offer, prefix_root("model"), tokens), wanted, 60.0)
    assert under_way is not None
    while True:
        if (found := under_way.take()) is not None:
            under_way.release(found[1])
        elif under_way.over:
            break
        else:
            wait(room)
    seconds = time.perf_counter() - began
    room.done(under_way)
    if under_way.reason or under_way.bytes != tokens * LAYOUT.token_bytes:
        raise SystemExit(f"the transfer failed: {under_way.reason or under_way.bytes}")
    gigabytes = under_way.bytes / 1e9
    return Spent(*(each / gigabytes for each in (seconds, cpu_seconds(peer) - its, time.process_time() - mine)))


def cpu_seconds(pid: int) -> float:
    """That a process has used so far, to the nanosecond: by its CPU clock, as Linux numbers these."""
    return time.clock_gettime(~pid << 3 | 2)


def copy(num_bytes: int) -> Spent:
    """What one thread copies from memory to memory, chunk by chunk: as much of both as a transfer uses."""
    chunk = LAYOUT.token_bytes * chunk_tokens(LAYOUT, GRAIN)
    source, target = (np.ones((CHUNKS, chunk), np.uint8) for _ in range(2))
    count = num_bytes // chunk
    began, mine = time.perf_counter(), time.process_time()
    for number in range(count):
        np.copyto(target[number % CHUNKS], source[number % CHUNKS])
    clock, cpu = time.perf_counter() - began, time.process_time() - mine
    return Spent(*(each / (count * chunk / 1e9) for each in (clock, cpu, 0.0)))


def rows(rounds: dict[str, list[Spent]]) -> Iterator[Row]:
    """Of each way GB/s beside a plain copy's, by the clock and by CPU seconds of the busier side, and what both sides
    spend on a GB. Ratios are medians of the rounds'."""
    copies = rounds["copy"]
    for name, found in rounds.items():
        for unit in ("clock", "cpu") if name != "copy" else ():
            mine, plain = ([getattr(each, unit) for each in of] for of in (found, copies))
            row = compare(f"transfer_{name}_{unit}", 1 / median(mine), "GB/s", "copy", 1 / median(plain))
            yield replace(row, ratio=median(a / b for a, b in zip(plain, mine, strict=True)))
    for name, found in rounds.items():
        for side in ("sending", "receiving") if name != "copy" else ():
            spent = 1000 * median(getattr(each, side) for each in found)
            copied = 1000 * median(each.cpu for each in copies)
            yield compare(f"transfer_{name}_{side}", spent, "ms a GB", "copy", copied, lower_is_better=True)


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--mebibytes", type=positive, default=512, help="of each transfer (default: 512)")
    parser.add_argument("--repeats", type=positive, default=9, help="rounds (default: 9)")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve()
    room = TransferRoom(TransferSettings("127.0.0.1:0"))
    peer = subprocess.Popen([sys.executable, "-m", "bench.transfer", "--serve"], stdout=subprocess.PIPE, text=True)
    try:
        assert peer.stdout is not None
        port, local, key = peer.stdout.readline().split()
        offer = TransferOffer(f"127.0.0.1:{port}", local, bytes.fromhex(key))
        whole = chunk_tokens(LAYOUT, GRAIN)
        tokens = max(1, (given.mebibytes << 20) // LAYOUT.token_bytes // whole) * whole
        rounds: dict[str, list[Spent]] = {"copy": [], "shared_memory": [], "tcp": []}
        for _ in range(given.repeats):
            rounds["copy"].append(copy(tokens * LAYOUT.token_bytes))
            rounds["shared_memory"].append(fetch(room, offer, tokens, peer.pid))
            rounds["tcp"].append(fetch(room, replace(offer, local=""), tokens, peer.pid))
        publish(rows(rounds), given.json)
    finally:
        peer.kill()


if __name__ == "__main__":
    main()
