"""How much faster a prefix comes back from host memory, or local disk, than it is computed: the time to a first token.

    python -m bench.tiers MODEL [--tokens N] [--repeats N] [--executor NAME] [--json FILE]
    python -m bench.tiers --shape llama3_8b --device cuda     # random weights, made on the device

A pool for little more than one prompt: two prompts in turn evict each other. Each is computed at first, and comes back
from host memory from then on; then a new engine finds both on the disk of the temporary directory. Medians of one run,
by the clock and by CPU seconds, which other programs do not change.
"""

import argparse
import random
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.command import parser_of, positive
from bench.report import Row, compare, publish

from polyfleet.engine import Engine, EngineOptions
from polyfleet.wire.requests import SequenceRequest


class Spent(NamedTuple):
    """Seconds until a first token was there."""

    clock: float
    cpu: float


def first_token(engine: Engine, prompt: tuple[int, ...]) -> Spent:
    """Of one prompt."""
    began, used = time.perf_counter(), time.process_time()
    engine.add(SequenceRequest("one", prompt, max_tokens=1, ignore_eos=True))
    while not any(update.tokens for update in engine.step()):
        pass
    spent = Spent(time.perf_counter() - began, time.process_time() - used)
    while engine.has_work:  # what goes to disk does so now
        engine.step()
    return spent


def load(given: argparse.Namespace, options: EngineOptions) -> Engine:
    """The model that was asked for."""
    if not given.shape:
        return Engine.load(given.model, options)
    from bench.card.ours import random_engine  # brings torch

    return random_engine(given.shape, options)


def rows(name: str, found: list[Spent], computed: list[Spent], tokens: int) -> list[Row]:
    """By the clock and by CPU seconds, beside computing; `tokens` came from there."""
    print(f"{name}: {tokens} tokens of {len(found)} prompts")
    return [
        compare(f"tiers_{name}_{unit}", ours, "s", "computed", theirs, lower_is_better=True)
        for unit, ours, theirs in zip(Spent._fields, medians(found), medians(computed), strict=True)
    ]


def medians(found: list[Spent]) -> Spent:
    """Of each clock."""
    return Spent(*(median(each) for each in zip(*found, strict=True)))


def from_disk(engine: Engine, prompts: list[tuple[int, ...]], folder: Path) -> tuple[list[Spent], int]:
    """By a new engine, and how many tokens it has read."""
    while engine.status().disk_blocks < len(list(folder.rglob("*.kv"))):
        time.sleep(0.01)  # it looks at all of them first
    read = [first_token(engine, prompt) for prompt in prompts]
    tokens = engine.status().disk_tokens
    engine.close()
    return read, tokens


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--shape", default="", help="of bench/card/shapes.py, instead of a model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=positive, default=4096)
    parser.add_argument("--repeats", type=positive, default=3)
    parser.add_argument("--executor", default="auto")
    given = parser.parse_args()
    if bool(given.model) == bool(given.shape):
        parser.error("name a model, or a --shape")
    context = given.tokens + 64
    options = EngineOptions(
        device=given.device,
        executor=given.executor,
        context_length=context,
        kv_cache_tokens=context + 128,
        host_cache_tokens=4 * context,
        max_sequences=2,
    )
    with tempfile.TemporaryDirectory() as folder:
        options = replace(options, disk_cache_dir=folder)
        engine = load(given, options)
        draw, vocabulary = random.Random(1), engine.facts.vocabulary_size
        prompts = [tuple(draw.randrange(vocabulary) for _ in range(given.tokens + 1)) for _ in range(5)]
        prompts, others, warming = prompts[:2], prompts[2:4], prompts[4]
        first_token(engine, warming)  # what is compiled or made at its first use is so now
        computed = [first_token(engine, prompt) for prompt in prompts]
        restored = [first_token(engine, prompt) for _ in range(given.repeats) for prompt in prompts]
        print(f"{engine.facts.executor}, a prompt of {given.tokens} tokens")
        # Nothing of the first two stays in the pool, whose blocks are not written when an engine ends.
        computed += [first_token(engine, prompt) for prompt in others]
        found = rows("host_memory", restored, computed, engine.status().restored_tokens)
        engine.close()
        read, tokens = from_disk(load(given, options), prompts, Path(folder))
        publish([*found, *rows("disk", read, computed, tokens)], given.json)


if __name__ == "__main__":
    main()
