"""vLLM as it serves, for `bench.card.clients`: clients of AsyncLLM in one process, its engine in another.

`python online.py MODEL MOST_TOKENS` loads a folder's configuration with random weights; for each line of JSON, a Load,
it answers with its Stamps. Imports nothing of ours that vLLM's PYTHONPATH has not.
"""

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import import_module
from itertools import count
from typing import Any

Load = dict[str, int]  # clients, requests, tokens of a prompt and of an output, and of the vocabulary
Stamps = list[list[float]]  # of each request when it left, and when each of its tokens came
KV_BYTES = 16 << 30
LEAST_FREE = 0.3  # of the card's memory, that it wants to see at its start


async def serve(folder: str, context: str, answers: Any) -> None:
    """Load, then answer."""
    vllm: Any = import_module("vllm")
    arguments = import_module("vllm.engine.arg_utils").AsyncEngineArgs(
        model=folder,
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype="bfloat16",
        max_model_len=int(context),
        max_num_seqs=256,
        enable_prefix_caching=False,
        seed=0,
        gpu_memory_utilization=LEAST_FREE,
        kv_cache_memory_bytes=KV_BYTES,
    )
    engine = import_module("vllm.v1.engine.async_llm").AsyncLLM.from_engine_args(arguments)
    deltas = import_module("vllm.sampling_params").RequestOutputKind.DELTA
    answers.write(json.dumps({"version": vllm.__version__}) + "\n")
    numbers = count()

    async def one(load: Load, draw: random.Random, stamps: Stamps) -> None:
        prompt = draw.choices(range(16, load["vocabulary"] - 16), k=load["prompt"])
        options = {"max_tokens": load["output"], "temperature": 0.0, "ignore_eos": True, "detokenize": False}
        wanted = vllm.SamplingParams(**options, output_kind=deltas)
        times = [time.perf_counter()]
        async for answer in engine.generate({"prompt_token_ids": prompt}, wanted, str(next(numbers))):
            times += [time.perf_counter()] * len(answer.outputs[0].token_ids)
        stamps.append(times)

    while line := await asyncio.to_thread(sys.stdin.readline):
        load, stamps = json.loads(line), Stamps()
        await closed_loop(load, partial(one, load, random.Random(line), stamps))
        answers.write(json.dumps({"stamps": stamps}) + "\n")
    engine.shutdown()


async def closed_loop(load: Load, one: Callable[[], Awaitable[None]]) -> None:
    """So many requests of so many clients, each of which sends the next when the last one has ended."""
    left = load["requests"]

    async def client() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await one()

    await asyncio.gather(*(client() for _ in range(load["clients"])))


if __name__ == "__main__":
    answering = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print must not get among the answers
    asyncio.run(serve(sys.argv[1], sys.argv[2], answering))
