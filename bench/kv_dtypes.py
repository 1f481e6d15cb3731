"""What caches in 8 bits cost, and save, beside an executor's usual ones: steps over long contexts, what a model says.

    python -m bench.kv_dtypes [MODEL] [--kv-dtype int8] [--tokens N] [--sequences N] [--steps N] [--repeats N]

Two engines in one process, in turn, on one thread: decode steps over N tokens of context each, by CPU seconds, which
other programs change little; and the log probabilities of a text's tokens (perplexity.txt), read 512 at a time.
"""

import json
import random
import time
from collections.abc import Iterator, Sequence
from importlib.resources import files
from itertools import chain
from math import exp
from pathlib import Path
from statistics import fmean, median

from bench.command import parser_of, positive, run
from bench.report import Row, compare, publish
from tokenizers import Tokenizer

from polyfleet.cli.stack.settings import bundled_model
from polyfleet.engine import Engine, EngineOptions
from polyfleet.loading.load import load_model
from polyfleet.wire.requests import SequenceRequest

USUAL = "auto"  # the executor's own type of caches
WINDOW = 512  # tokens of the text that are read together


def decode_seconds(engine: Engine, steps: int) -> float:
    """CPU seconds of a step, of all sequences that run."""
    began = time.process_time()
    for _ in range(steps):
        engine.step()
    return (time.process_time() - began) / steps


def begin(engine: Engine, contexts: Sequence[tuple[int, ...]], new_tokens: int) -> float:
    """CPU seconds until all prompts are computed, and each sequence has a token."""
    began = time.process_time()
    for number, context in enumerate(contexts):
        engine.add(SequenceRequest(str(number), context, max_tokens=new_tokens, ignore_eos=True))
    begun: set[str] = set()
    while len(begun) < len(contexts):
        begun |= {each.sequence_id for each in engine.step() if each.tokens}
    return time.process_time() - began


def logprobs(engine: Engine, token_ids: Sequence[int]) -> list[float]:
    """Of each token of a text behind the first of its window."""
    found = list[float]()
    for first in range(0, len(token_ids) - WINDOW + 1, WINDOW):
        window = tuple(token_ids[first : first + WINDOW])
        engine.add(SequenceRequest(f"text {first}", window, max_tokens=1, prompt_logprobs=0))
        while engine.has_work:
            found += [token.logprob for update in engine.step() for token in update.prompt_logprobs]
    return found


def compare_texts(model: str, wide: Engine, narrow: Engine, text: str) -> Iterator[Row]:
    """What both think of a text, where the model has a tokenizer."""
    assets = load_model(model, numbers=False).tokenizer
    if assets is None:
        return
    token_ids = Tokenizer.from_str(json.dumps(json.loads(assets.document)["tokenizer"])).encode(text).ids
    mine, theirs = (logprobs(engine, token_ids) for engine in (wide, narrow))
    differences = [abs(a - b) for a, b in zip(mine, theirs, strict=True)]
    perplexities = exp(-fmean(theirs)), USUAL, exp(-fmean(mine))
    yield compare(f"perplexity_{len(mine)}_tokens", perplexities[0], "", *perplexities[1:], lower_is_better=True)
    yield Row("logprobs_differ_mean", fmean(differences), "nats")
    yield Row("logprobs_differ_most", max(differences), "nats")


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("model", nargs="?", type=Path, default=None, help="(default: SmolLM2)")
    parser.add_argument("--kv-dtype", default="int8", choices=("int8", "fp8"))
    parser.add_argument("--tokens", type=positive, default=4096)
    parser.add_argument("--sequences", type=positive, default=1)
    parser.add_argument("--steps", type=positive, default=16)
    parser.add_argument("--repeats", type=positive, default=9)
    parser.add_argument("--threads", type=positive, default=1)
    parser.add_argument("--executor", default="auto")
    parser.add_argument("--text", type=Path, default=Path(str(files("polyfleet.loading") / "perplexity.txt")))
    given = parser.parse_args()
    model = str(given.model or bundled_model())
    new_tokens = given.steps * given.repeats + 2
    context = max(given.tokens + new_tokens, WINDOW + 1)
    engines, kind = dict[str, Engine](), given.kv_dtype
    for kept in ("auto", kind):
        sizes = {"context_length": context, "kv_cache_tokens": given.sequences * (context + 32)}
        sizes |= {"max_sequences": given.sequences, "threads": given.threads}
        options = EngineOptions(executor=given.executor, kv_dtype=kept, prefix_cache=False, **sizes)
        engines[kept] = Engine.load(model, options)
    wide, narrow = engines.values()
    draw, vocabulary = random.Random(1), wide.facts.vocabulary_size
    prompts = [tuple(draw.randrange(vocabulary) for _ in range(given.tokens)) for _ in range(given.sequences)]
    prefills = [begin(engine, prompts, new_tokens) for engine in (wide, narrow)]
    turns = [[decode_seconds(engine, given.steps) for engine in (wide, narrow)] for _ in range(given.repeats)]
    (first, second), ratio = (median(each) for each in zip(*turns, strict=True)), median(a / b for a, b in turns)
    print(f"{wide.facts.executor} and {narrow.facts.executor}, {given.sequences} x {given.tokens} tokens of context")
    for engine in (wide, narrow):
        while engine.has_work:
            engine.step()
    rows = [
        compare(f"{kind}_prompts", prefills[1], "s CPU", USUAL, prefills[0], lower_is_better=True),
        Row(f"{kind}_decode_step", 1e3 * second, "ms CPU", USUAL, 1e3 * first, ratio),  # of rounds in turn
    ]
    publish(chain(rows, compare_texts(model, wide, narrow, given.text.read_text())), given.json)


if __name__ == "__main__":
    run(main)
