"""How fast keys and values travel between two processes: through shared memory and over TCP, beside a plain copy.

    python bench/transfer.py [--mebibytes N] [--repeats N]

Two processes of one host, a worker's TransferRoom in each; rounds alternate, and every ratio is of medians of one run.
Through shared memory the receiver reads what it needs where it lies, so only the sender copies. Beside the clock's rate
stands that by CPU seconds of the busier process: what the transfer reaches where both have a core of their own.
"""

import argparse
import select
import subprocess
import sys
import time
from dataclasses import replace
from statistics import median
from typing import NamedTuple

import numpy as np

from polyfleet.graph.kernel_graph import PerToken
from polyfleet.kvcache.portable import KvLayout
from polyfleet.kvcache.travelling import Wanted, chunk_tokens
from polyfleet.transfer.room import TransferRoom
from polyfleet.transfer.settings import TransferSettings
from polyfleet.wire.hashing import prefix_root
from polyfleet.wire.tickets import TransferOffer, source_of

LAYOUT = KvLayout("model", tuple(PerToken(8, 128) for _ in range(32)), "float16")  # Llama-3-8B's
GRAIN = 16


def serve() -> None:
    """Give every peer as many tokens as it has ids, always from the same memory."""
    room = TransferRoom(TransferSettings("127.0.0.1:0"))
    print(room.port, room.local, room.key.hex(), flush=True)
    most = chunk_tokens(LAYOUT, GRAIN)
    caches = tuple(np.ones((2, most, 8, 128), np.float16) for _ in LAYOUT.caches)
    while True:
        wait(room)
        for inquiry in room.new_inquiries():
            inquiry.state(LAYOUT)
            while inquiry.first < len(inquiry.token_ids) and not inquiry.gone:
                if inquiry.room:
                    inquiry.give(inquiry.first, caches)
                else:
                    wait(room)
            inquiry.end()


def wait(room: TransferRoom) -> None:
    """Until there is news, as an idle engine does."""
    select.select([room.descriptor], [], [], 1.0)
    room.clear()


class Rate(NamedTuple):
    """Bytes a second, by the clock and by the CPU time of the busier process."""

    clock: float
    cpu: float


def fetch(room: TransferRoom, offer: TransferOffer, tokens: int, peer: int) -> Rate:
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
    busier = max(time.process_time() - mine, cpu_seconds(peer) - its)
    return Rate(under_way.bytes / seconds, under_way.bytes / busier)


def cpu_seconds(pid: int) -> float:
    """That a process has used so far, to the nanosecond: by its CPU clock, as Linux numbers these."""
    return time.clock_gettime(~pid << 3 | 2)


def copy(num_bytes: int) -> Rate:
    """What one thread copies from memory to memory, chunk by chunk as a transfer does."""
    chunk = LAYOUT.token_bytes * chunk_tokens(LAYOUT, GRAIN)
    source, target = np.ones(chunk, np.uint8), [np.zeros(chunk, np.uint8) for _ in range(4)]
    count = num_bytes // chunk
    began, mine = time.perf_counter(), time.process_time()
    for number in range(count):
        np.copyto(target[number % 4], source)
    return Rate(count * chunk / (time.perf_counter() - began), count * chunk / (time.process_time() - mine))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mebibytes", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve()
    room = TransferRoom(TransferSettings("127.0.0.1:0"))
    peer = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
    try:
        assert peer.stdout is not None
        port, local, key = peer.stdout.readline().split()
        offer = TransferOffer(f"127.0.0.1:{port}", local, bytes.fromhex(key))
        whole = chunk_tokens(LAYOUT, GRAIN)
        tokens = max(1, (given.mebibytes << 20) // LAYOUT.token_bytes // whole) * whole
        rates: dict[str, list[Rate]] = {"copy": [], "shared memory": [], "tcp": []}
        for _ in range(given.repeats):
            rates["copy"].append(copy(tokens * LAYOUT.token_bytes))
            rates["shared memory"].append(fetch(room, offer, tokens, peer.pid))
            rates["tcp"].append(fetch(room, replace(offer, local=""), tokens, peer.pid))
        plain = Rate(*(median(each) for each in zip(*rates["copy"], strict=True)))
        for name, found in rates.items():
            clock, cpu = (median(each) for each in zip(*found, strict=True))
            by_clock = f"{clock / 1e9:6.2f} GB/s ({clock / plain.clock:4.2f} x copy)"
            print(f"{name:14} clock {by_clock}   CPU {cpu / 1e9:6.2f} GB/s ({cpu / plain.cpu:4.2f} x copy)")
    finally:
        peer.kill()


if __name__ == "__main__":
    main()
