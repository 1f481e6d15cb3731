"""How much faster a prefix comes back from host memory than it is computed: the time to the first token of a prompt.

    python bench/tiers.py MODEL [--tokens N] [--repeats N] [--executor NAME]

A pool for little more than one prompt: two prompts in turn evict each other. Each is computed at first, and comes back
from host memory from then on; medians of one run.
"""

import argparse
import random
import time
from statistics import median

from polyfleet.engine import Engine, EngineOptions
from polyfleet.wire.requests import SequenceRequest


def first_token(engine: Engine, prompt: tuple[int, ...]) -> float:
    """Seconds until it is there."""
    engine.add(SequenceRequest("one", prompt, max_tokens=1, ignore_eos=True))
    began = time.perf_counter()
    while engine.has_work:
        engine.step()
    return time.perf_counter() - began


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--executor", default="auto")
    given = parser.parse_args()
    context = given.tokens + 64
    options = EngineOptions(
        executor=given.executor,
        context_length=context,
        kv_cache_tokens=context + 128,
        host_cache_tokens=4 * context,
        max_sequences=2,
    )
    engine = Engine.load(given.model, options)
    draw = random.Random(1)
    vocabulary = engine.facts.vocabulary_size
    computed, restored = list[float](), list[float]()
    prompts = [tuple(draw.randrange(vocabulary) for _ in range(given.tokens + 1)) for _ in range(2)]
    computed += [first_token(engine, prompt) for prompt in prompts]
    for _ in range(given.repeats):
        restored += [first_token(engine, prompt) for prompt in prompts]
    status = engine.status()
    print(f"{engine.facts.executor}: {given.tokens} tokens computed in {median(computed):.3f} s")
    print(f"restored in {median(restored):.3f} s: {median(computed) / median(restored):.1f} times as fast")
    print(f"({status.restored_tokens} tokens were restored, {2 * given.repeats} prompts)")


if __name__ == "__main__":
    main()
