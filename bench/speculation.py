"""Benchmark of speculation: decoding with drafts beside decoding without, in tokens per second and as a ratio.

    python bench/speculation.py                                # prompt lookup, the model of `make serve`, on the CPU
    python bench/speculation.py --threads 1 --clock cpu        # the same on a busy machine, in processor time
    python bench/speculation.py --model DIR --draft-model DIR --sequences 1,4 --json speculation.json

Rows speculation_copy_N (answers that copy their prompt, N at once) and speculation_novel_N (drawn so wildly that
nothing repeats). Two engines over one model take turns, as often as --repeats says, and give the same tokens; medians
of their times are compared.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it also runs as a file

from bench.command import parser_of, run
from bench.contenders.workload import CLOCKS, Clock
from bench.engine import default_model
from bench.report import Row, compare, publish
from tokenizers import Tokenizer

from polyfleet.engine.engine import Engine
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import SequenceRequest
from polyfleet.wire.sampling import GREEDY, SamplingParams

TEXT = (
    "| name | colour | weight |\n| apple | red | 150 g |\n| pear | green | 170 g |\n| plum | violet | 60 g |\n"
    "| quince | yellow | 240 g |\n| sloe | dark blue | 3 g |\n| medlar | brown | 30 g |\n| cherry | red | 8 g |\n"
)
WILD = SamplingParams(temperature=2.0, seed=1)
Engines = dict[str, Engine]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line. Exits with a message for what can't be run."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", type=Path, default=None, help="GGUF file or Hugging Face folder (default: SmolLM2)")
    parser.add_argument("--device", default="cpu", help="a device (default cpu)")
    parser.add_argument("--draft-model", default="", help="a small model that drafts (default: prompt lookup)")
    parser.add_argument("--sequences", default="1", help="comma-separated, how many at once (default 1)")
    parser.add_argument("--draft-tokens", type=int, default=0, help="drafts of a step at most (default: the usual)")
    parser.add_argument("--tokens", type=int, default=96, help="tokens of an answer (default 96)")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads (default: usable cores)")
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall", help="cpu: processor time")
    parser.add_argument("--repeats", type=int, default=7, help="turns of each engine (default 7)")
    chosen = parser.parse_args(arguments)
    words = chosen.sequences.split(",")
    chosen.sequences = [int(each) if each.strip().isdecimal() else 0 for each in words]
    if min(chosen.repeats, chosen.tokens, *chosen.sequences) < 1:
        parser.error("--repeats, --tokens and --sequences must be 1 or more")
    chosen.model = (chosen.model or default_model(parser)).resolve()
    return chosen


def engines(options: argparse.Namespace) -> Engines:
    """Without and with drafts; prefixes are not kept, so that each turn computes the same."""
    sizes: dict[str, Any] = {"kv_cache_tokens": 1024 * max(options.sequences), "max_sequences": max(options.sequences)}
    plain = EngineOptions(device=options.device, threads=options.threads, prefix_cache=False, **sizes)
    kind = "draft" if options.draft_model else "ngram"
    drafts = replace(plain, speculation=kind, draft_model=options.draft_model, draft_tokens=options.draft_tokens)
    return {"off": Engine.load(str(options.model), plain), kind: Engine.load(str(options.model), drafts)}


def decode(
    engine: Engine, prompt_ids: tuple[int, ...], params: SamplingParams, size: int, number: int, clock: Clock
) -> tuple[float, list[int]]:
    """Seconds from the first token of all sequences to the last, and the tokens of the first sequence."""
    for index in range(size):
        engine.add(SequenceRequest(f"s{index}", prompt_ids, params, choice=index, max_tokens=number, ignore_eos=True))
    tokens, began, started = list[int](), 0.0, set[str]()
    while engine.has_work:
        for update in engine.step():
            if update.error:
                raise RuntimeError(update.error)
            started.add(update.sequence_id)
            tokens += [token.token_id for token in update.tokens] if update.sequence_id == "s0" else []
        if len(started) == size and not began:
            began = clock()
    return clock() - began, tokens


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """A row for each kind of answer and number of sequences."""
    both = engines(options)
    _, kind = both
    assets = both["off"].tokenizer
    if assets is None:
        raise SystemExit("The model has no tokenizer.")
    tokenizer = Tokenizer.from_str(json.dumps(json.loads(assets.document)["tokenizer"]))
    copied = tuple(tokenizer.encode(2 * TEXT + TEXT[: TEXT.index("| pear")]).ids)
    for name, prompt_ids, params in (("copy", copied, GREEDY), ("novel", copied[: len(copied) // 3], WILD)):
        for size in options.sequences:
            seconds: dict[str, list[float]] = {each: [] for each in both}
            for turn in range(-1, options.repeats):  # the first one warms up
                answers = []
                for each in both if turn % 2 else reversed(both):
                    took, tokens = decode(both[each], prompt_ids, params, size, options.tokens, CLOCKS[options.clock])
                    answers.append(tokens)
                    seconds[each] += [took] if turn >= 0 else []
                if answers[0] != answers[1]:
                    print(f"speculation_{name}_{size}: the engines' tokens part", file=sys.stderr)
            rates = {each: size * options.tokens / median(taken) for each, taken in seconds.items()}
            yield compare(f"speculation_{name}_{size}", rates[kind], "tokens/s", "off", rates["off"])


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, write."""
    options = parse(arguments)
    publish(list(measure(options)), options.json)
    return 0


if __name__ == "__main__":
    run(main)
