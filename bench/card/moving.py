"""What moving a block of keys and values between device and host costs the thread that launches an engine's steps.

    python -m bench.card.moving                                # cuda:0, Llama-3-8B's shape in bfloat16
    python -m bench.card.moving --device cpu --shape tiny      # a try, on a CPU

Rows are microseconds for each block of 64 tokens, in turn: taken in from page-locked memory, beside the same from
memory that has to be copied first; given without waiting for it, beside waiting; and both ways' launches by cache.
Then what taking one in costs an engine's thread, whose launches another thread makes, along a prompt of 4,096 tokens:
by the clock and in CPU seconds, from page-locked memory and from any.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median

import numpy as np
import torch
from bench.card.shapes import BLOCK_SIZE, SHAPES
from bench.command import parser_of
from bench.report import Row, compare, publish

from polyfleet.engine.batching.holdings import Holdings
from polyfleet.engine.executor import Capacity
from polyfleet.engine.travel.exchange import Exchange
from polyfleet.executors.blocks.access import BlockAccess
from polyfleet.executors.blocks.copies import BlockCopies
from polyfleet.executors.blocks.host_memory import page_locked
from polyfleet.executors.blocks.moves import block_moves
from polyfleet.executors.blocks.streams import streams_of
from polyfleet.graph.kernel_graph import PerToken
from polyfleet.kvcache.portable import Joined
from polyfleet.kvcache.storage import KvStorage
from polyfleet.kvcache.travelling import Chunk

BLOCKS, ROUNDS, EACH = 256, 5, 40  # of the cache; rounds of each way in turn, of so many blocks
PROMPT = 4096  # tokens


class Bench:
    """A device's cache, and a block's contents in both kinds of memory."""

    def __init__(self, device: torch.device, shape: str) -> None:
        sizes = SHAPES[shape]
        caches = [PerToken(sizes.kv_heads, sizes.width)] * sizes.layers
        self.storage = KvStorage.allocate(caches, BLOCKS, BLOCK_SIZE, torch.bfloat16, device)
        streams = streams_of(device, asynchronous=device.type != "cpu")
        moves = block_moves(self.storage, {"triton"} if device.type != "cpu" else set())
        self.copies = BlockCopies(self.storage, torch.bfloat16, device, streams, moves)
        self.by_cache = BlockCopies(self.storage, torch.bfloat16, device, streams)
        shapes = self.storage.shapes(1, 0)
        self._block_bytes = 2 * sum(int(np.prod(each)) for each in shapes)
        make = page_locked if device.type != "cpu" else lambda size: np.empty(size, np.uint8).data
        self.locked, self.plain = ([self._chunk(one(self._block_bytes)) for _ in range(8)] for one in (make, new))
        self._device, self._turn = device, 0

    def _chunk(self, memory: memoryview) -> Chunk:
        flat = np.frombuffer(memory, np.uint16)
        flat[:] = np.random.default_rng(len(flat)).integers(0, 0x4000, len(flat))
        return Chunk(0, Joined.of(memory, self.storage.shapes(1, 0), flat.dtype))

    def seconds(self, work: Callable[[int], object]) -> float:
        """Of the thread, the median of a block; the device is idle when each begins."""
        found = []
        for _ in range(EACH):
            self._turn += 1
            self.wait()
            began = time.perf_counter()
            work(self._turn)
            found.append(time.perf_counter() - began)
        return median(found)

    def wait(self) -> None:
        """Until the device is idle."""
        if self._device.type != "cpu":
            torch.get_device_module(self._device).synchronize()

    def check(self) -> None:
        """What was taken in by one way is given by the other, bit by bit."""
        for taking, giving in ((self.copies, self.by_cache), (self.by_cache, self.copies)):
            for number, chunk in enumerate(self.locked):
                taking.take([number * 9], chunk.caches, ())
                self.wait()
                given = giving.export([number * 9], ())
                assert all(np.array_equal(*both) for both in zip(given, chunk.caches, strict=True))


class Blocks(BlockAccess):
    """An executor as far as an Exchange needs one."""

    def __init__(self, copies: BlockCopies) -> None:
        self._copies, self._storage, self._device = copies, copies.storage, copies.device
        self._asynchronous = copies.device.type != "cpu"


def taken_in(bench: Bench, chunks: Sequence[Chunk]) -> tuple[float, float]:
    """Medians of the engine's thread for each block of a prompt: seconds by the clock and of the CPU."""
    holdings = Holdings(Capacity(BLOCKS, BLOCK_SIZE, 1, BLOCKS, BLOCK_SIZE), prefix_cache=True)
    exchange, spent = Exchange(holdings, Blocks(bench.copies), "a model"), []  # type: ignore[arg-type]
    hashes = exchange.chain(range(PROMPT), b"")
    for at in range(0, PROMPT, BLOCK_SIZE):
        began, used = time.perf_counter(), time.thread_time()
        addition = exchange.begin_add(hashes, at, chunks[at // BLOCK_SIZE % len(chunks)].caches)
        now, more = time.perf_counter(), time.thread_time()
        while not addition.writing.over:
            time.sleep(1e-4)
        ending, last = time.perf_counter(), time.thread_time()
        assert exchange.end_add(addition) == at + BLOCK_SIZE
        spent.append((now - began + time.perf_counter() - ending, more - used + time.thread_time() - last))
    exchange.close()
    bench.wait()
    return median(each for each, _ in spent), median(each for _, each in spent)


def new(size: int) -> memoryview:
    """Ordinary memory."""
    return np.empty(size, np.uint8).data


def rows(bench: Bench) -> Iterator[Row]:
    """All of it, in turn."""
    one, all_, locked, plain = bench.copies, bench.by_cache, bench.locked, bench.plain
    ways: dict[str, Callable[[int], object]] = {
        "take": lambda turn: one.take([turn % BLOCKS], locked[turn % 8].caches, ()),
        "take_copied": lambda turn: one.take([turn % BLOCKS], plain[turn % 8].caches, ()),
        "take_by_cache": lambda turn: all_.take([turn % BLOCKS], locked[turn % 8].caches, ()),
        "take_both": lambda turn: all_.take([turn % BLOCKS], plain[turn % 8].caches, ()),
        "give": lambda turn: one.begin_export([turn % BLOCKS], ()),
        "give_waited": lambda turn: one.export([turn % BLOCKS], ()),
        "give_both": lambda turn: all_.export([turn % BLOCKS], ()),
    }
    turns = []
    for _ in range(ROUNDS):
        turns.append({name: bench.seconds(work) for name, work in ways.items()})
        turns[-1]["taken_in"], turns[-1]["taken_in_cpu"] = taken_in(bench, locked)
        turns[-1]["taken_in_copied"], turns[-1]["taken_in_copied_cpu"] = taken_in(bench, plain)
    found = {name: 1e6 * median(each[name] for each in turns) for name in turns[0]}
    for name, peers in (
        ("take", ("take_copied", "take_by_cache", "take_both")),
        ("give", ("give_waited", "give_both")),
        ("taken_in", ("take",)),
        ("taken_in_cpu", ("take",)),
        ("taken_in_copied", ("take_copied",)),
        ("taken_in_copied_cpu", ("take_copied",)),
    ):
        for peer in peers:
            yield compare(f"card_moving_{name}", found[name], "us", peer, found[peer], lower_is_better=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--device", default="cuda:0", help="(default: cuda:0)")
    parser.add_argument("--shape", choices=tuple(SHAPES), default="llama3_8b", help="(default: llama3_8b)")
    options = parser.parse_args(arguments)
    bench = Bench(torch.device(options.device), options.shape)
    bench.check()
    publish(rows(bench), options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
