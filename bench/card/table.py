"""The table of one card: decode steps and prefill of each shape, ours and vLLM's in turn, and other weights."""

import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Protocol

from bench.card.account import Account, Case, account, table
from bench.card.ours import Ours, Prompts, random_prompts
from bench.card.peer import Peer
from bench.card.shapes import BLOCK_SIZE, SHAPES, Shape
from bench.report import Row, compare

from polyfleet.engine.executor import Capacity
from polyfleet.wire.options import EngineOptions

PROMPT, TOKENS = 128, 256  # of decode: (all tokens - one token) / those between
SIZES, PEER_SIZES = (1, 8, 32, 64, 128, 256), (1, 32, 256)
PREFILLS = ((1, 2048), (1, 8192), (16, 2048))
STEP_TOKENS = 8192  # of prefill, as vLLM's own
PROFILED = (1, 32, 256)
STEPS = 32  # that are accounted
CONTEXT = 9216
LARGE = ("llama3_8b",)  # shapes whose prefill and other weights are measured too
OTHER_WEIGHTS = ("fp8", "int4")
OTHER_SIZES = (1, 32, 64, 256)
OTHER_PREFILLS = PREFILLS[:1]

Prefills = tuple[tuple[int, int], ...]  # each so many prompts of so many tokens
Built = tuple[tuple[int, ...], Prefills]  # for these numbers of sequences, and these prefills
LARGEST, OTHERS = (SIZES, PREFILLS), (OTHER_SIZES, OTHER_PREFILLS)


class Side(Protocol):
    """Ours, or the peer."""

    def seconds(self, prompts: Prompts, new_tokens: int) -> float:
        """Until every prompt has its tokens."""
        ...


def say(text: str) -> None:
    """What is not a row."""
    print(text, file=sys.stderr, flush=True)


def measure(options: Namespace) -> Iterator[Row]:
    """All rows, those of each shape as soon as they are there."""
    with tempfile.TemporaryDirectory() as folder:
        for name in options.shapes:
            shape, peer = SHAPES[name], None
            if options.vllm:
                peer = Peer(shape.write(Path(folder) / name), options.vllm, CONTEXT)
            try:
                yield from _shape(name, shape, peer, options)
            finally:
                if peer is not None:
                    peer.close()


def _shape(name: str, shape: Shape, peer: Peer | None, options: Namespace) -> Iterator[Row]:
    ours = _ours(shape, options, "dense", LARGEST)
    if peer is not None:
        peer.ready()
    for size in SIZES:
        beside = peer if size in PEER_SIZES else None
        yield from _rows(f"{name}.decode_{size}", ours, beside, size, PROMPT, TOKENS, options.repeats)
    if name in LARGE:
        for count, length in PREFILLS:
            yield from _rows(f"{name}.prefill_{count}x{length}", ours, peer, count, length, 1, options.repeats)
    ours.close()
    if options.profile:
        yield from _profiled(name, options, "dense", LARGEST)
    for weights in options.weights if name in LARGE else ():
        other = _ours(shape, options, weights, OTHERS)
        for size in OTHER_SIZES:
            row = f"{name}.{weights}.decode_{size}"
            yield from _rows(row, other, None, size, PROMPT, TOKENS, options.repeats)
        for count, length in OTHER_PREFILLS:
            row = f"{name}.{weights}.prefill_{count}x{length}"
            yield from _rows(row, other, None, count, length, 1, options.repeats)
        other.close()
        if options.profile:
            yield from _profiled(name, options, weights, OTHERS)


def _ours(shape: Shape, options: Namespace, weights: str, built: Built) -> Ours:
    sizes, prefills = built
    most = max(sizes)
    longest = max([PROMPT + TOKENS + 64, *(length + 64 for _, length in prefills)])
    each = -(-(PROMPT + TOKENS + 64) // BLOCK_SIZE)
    blocks = max([most * each, *(count * (-(-length // BLOCK_SIZE) + 1) for count, length in PREFILLS)]) + 2
    step_tokens = STEP_TOKENS if prefills == PREFILLS else 2048
    capacity = Capacity(blocks, BLOCK_SIZE, most, -(-longest // BLOCK_SIZE), step_tokens)
    engine = EngineOptions(device=options.device, executor=options.executor, weights=weights)
    ours = Ours(shape, engine, capacity)
    to_build, to_allocate = ours.start_seconds
    say(f"{ours.executor.name}, {weights}: built in {to_build:.1f} s, allocated and captured in {to_allocate:.1f} s")
    return ours


def _rows(
    name: str, ours: Ours, peer: Peer | None, count: int, length: int, tokens: int, repeats: int
) -> Iterator[Row]:
    """Milliseconds of a step, or of a prefill where one token is wanted: medians of rounds in turn."""
    sides: list[Side] = [ours] if peer is None else [ours, peer]
    found: list[list[float]] = [[] for _ in sides]
    for number in range(-1, repeats):
        for each, values in zip(sides, found, strict=True):
            whole = each.seconds(random_prompts(count, length, ours.shape.vocabulary, 2 * number), tokens)
            if tokens > 1:
                one = each.seconds(random_prompts(count, length, ours.shape.vocabulary, 2 * number + 1), 1)
                whole = (whole - one) / (tokens - 1)
            if number >= 0:  # the first only warms up
                values.append(whole * 1e3)
    medians = [median(values) for values in found]
    theirs = None if peer is None else medians[1]
    row = compare(name, medians[0], "ms", "" if peer is None else peer.name, theirs, lower_is_better=True)
    say(f"{name}: {' / '.join(f'{each:.3f}' for each in medians)}" + (f", ratio {row.ratio:.3f}" if row.ratio else ""))
    yield row


def _profiled(name: str, options: Namespace, weights: str, built: Built) -> Iterator[Row]:
    """Each printed; the host's share as rows. In a process of its own: kernels that were recorded slow theirs down."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        found = process.submit(accounts, name, options, weights, built).result()
    for each in found:
        title = f"{name}.{each.title}" if weights == "dense" else f"{name}.{weights}.{each.title}"
        say(table(title, each))
        if each.title.startswith("decode"):
            yield Row(f"{title}.host", each.times.host, "ms")
            yield Row(f"{title}.idle", each.idle, "ms")
            yield Row(f"{title}.waits", each.times.waits, "ms")


def accounts(name: str, options: Namespace, weights: str, built: Built) -> list[Account]:
    """Of decode steps and, where there is room, of a prefill."""
    shape = SHAPES[name]
    ours = _ours(shape, options, weights, built)
    cases = []
    for size in PROFILED:
        prompts = random_prompts(size, PROMPT, shape.vocabulary, 7)
        cases.append(Case(f"decode_{size}", partial(_decoding, ours, prompts), STEPS))
    if built == LARGEST and name in LARGE:
        prompts = random_prompts(1, STEP_TOKENS, shape.vocabulary, 8)
        cases.append(Case("prefill_1x8192", lambda: nullcontext(lambda: ours.seconds(prompts, 1)), 3))
    found = account(cases, ours.executor, ours.device)
    ours.close()
    return found


@contextmanager
def _decoding(ours: Ours, prompts: Prompts) -> Iterator[Callable[[], object]]:
    with ours.decoding(prompts, TOKENS) as batcher:
        yield batcher.step
