"""Where a canary's answer comes from: shipped for known models, else the float32 reference on the host where it fits.

`python -m polyfleet.engine.canary.reference MODEL` computes a model's entry for `canaries.json`, which is shipped; with
a second argument that of the model as it is served with so long a context, for as long as its input is open.
"""

import json
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from polyfleet.backends.cpu import CpuBackend
from polyfleet.backends.protocol import KernelCapabilities
from polyfleet.engine.batching.batch import BatchLimits
from polyfleet.engine.batching.batcher import Batcher
from polyfleet.engine.canary.canary import (
    NUM_TOKENS,
    Canary,
    CanaryReference,
    candidate_prompts,
    make_canary,
    most_decisive,
)
from polyfleet.engine.choosing.executors import KNOWN, Workload, find
from polyfleet.engine.executor import Capacity, Executor
from polyfleet.loading.model import LoadedModel
from polyfleet.loading.progress import Progress, silent
from polyfleet.models.config import ModelConfig
from polyfleet.models.registry import record
from polyfleet.wire.answers import SampledToken
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import SequenceRequest

SHIPPED = Path(__file__).parent / "canaries.json"
MEMORY_SHARE = 0.5  # of the host's free memory that the reference may take
SAMPLED_BYTES = 1024  # of a weight's row
BLOCK_SIZE = 16
NICENESS = 10


@dataclass(frozen=True, slots=True)
class Source:
    """Where a model's reference comes from: it is known, or is to be computed, which reads all weights, or is none."""

    known: CanaryReference | None
    computed: bool


def source_of(model: LoadedModel) -> Source:
    """Reads a little of each weight."""
    known = shipped().get(fingerprint(model))
    return Source(known, known is None and fits(model, CpuBackend().memory().free_bytes))


def canary_for(
    model: LoadedModel,
    context_length: int,
    source: Source | None = None,
    *,
    threads: int = 0,
    progress: Progress = silent,
) -> Canary | None:
    """The canary of a model; None when its context is too short for one. It may have no reference, see `Canary`.

    `source`: what `source_of` said. Computing one takes a while and, for that time, 4 bytes a weight of host memory;
    `threads` 0 takes torch's choice.
    """
    prompts = candidate_prompts(model.config.vocabulary_size)
    if context_length < len(prompts[0]) + NUM_TOKENS:
        return None
    source = source or source_of(model)
    if source.known is not None:
        return make_canary(source.known.prompt_ids, source.known)
    if not source.computed:
        return make_canary(prompts[0], None)
    if threads:
        torch.set_num_threads(threads)
    found = most_decisive(compute_references(model, prompts, progress))
    return make_canary(found.prompt_ids, found)


def fits(model: LoadedModel, free_bytes: int) -> bool:
    """Whether the float32 reference has room in so much free memory."""
    return 4 * sum(weight.rows * weight.columns for weight in model.weights.values()) <= free_bytes * MEMORY_SHARE


def compute_references(
    model: LoadedModel, prompts: tuple[tuple[int, ...], ...], progress: Progress = silent
) -> list[CanaryReference]:
    """Greedy continuations by the eager executor in float32 on the CPU; shorter where its output is not finite."""
    capabilities = KernelCapabilities(frozenset({"float32"}), "float32")
    graph = record(model.config, model.weights)
    workload = Workload(graph, model.weights, EngineOptions(), "cpu", "float32", capabilities)
    executor = find("eager", KNOWN["eager"]).build(workload, progress)
    try:
        answers = continue_greedily(executor, prompts, NUM_TOKENS)
    finally:
        executor.close()
    return [_reference(prompt, answer.tokens) for prompt, answer in zip(prompts, answers, strict=True)]


@dataclass(slots=True)
class Continuation:
    """Tokens, each with its two likeliest alternatives, and why there are no more of them."""

    tokens: list[SampledToken] = field(default_factory=list)
    error: str = ""


def continue_greedily(executor: Executor, prompts: Sequence[tuple[int, ...]], num_tokens: int) -> list[Continuation]:
    """So many greedy tokens behind each prompt, all in one batch, on an executor without a KV cache as yet."""
    longest = max(map(len, prompts)) + num_tokens
    blocks, rows = -(-longest // BLOCK_SIZE), max(sum(map(len, prompts)), len(prompts) + 1)
    capacity = Capacity(blocks * len(prompts), BLOCK_SIZE, len(prompts), blocks, rows)
    executor.allocate(capacity)
    batcher = Batcher(executor, capacity, BatchLimits(len(prompts), rows, longest, prefix_cache=False))
    answers = {str(index): Continuation() for index in range(len(prompts))}
    for name, prompt in zip(answers, prompts, strict=True):
        batcher.add(SequenceRequest(name, prompt, max_tokens=num_tokens, ignore_eos=True, logprobs=2))
    while batcher.has_work:
        for update in batcher.step().updates:
            answer = answers[update.sequence_id]
            answer.tokens += update.tokens
            answer.error = update.error
    return list(answers.values())


def _reference(prompt: tuple[int, ...], tokens: list[SampledToken]) -> CanaryReference:
    margins = (round(token.top_logprobs[0] - token.top_logprobs[1], 3) for token in tokens)
    return CanaryReference(prompt, tuple(token.token_id for token in tokens), tuple(margins))


def fingerprint(model: LoadedModel) -> str:
    """sha256 over what decides a model's answers: shape, constants, and of each weight its format and three rows.

    A file damaged elsewhere has the fingerprint of the whole one, so that its answers are found wrong.
    """
    config = model.config
    shape = (config.vocabulary_size, config.hidden_size, config.num_layers, config.num_heads, config.num_kv_heads)
    sizes = (config.head_dim, config.intermediate_size, config.tied_embeddings)
    constants = [f"{value:.6g}" for value in (config.norm_eps, *config.inverse_frequencies)]
    digest = sha256(repr((config.architecture, shape, sizes, constants)).encode())
    digest.update(_further(config).encode())
    for name, weight in sorted(model.weights.items()):
        digest.update(f"{name} {weight.format.value} {weight.rows} {weight.columns}".encode())
        for row in (0, weight.rows // 2, weight.rows - 1):
            data = weight.data[row].contiguous().view(torch.uint8)
            digest.update(data[:SAMPLED_BYTES].numpy().tobytes())
    return digest.hexdigest()


def _further(config: ModelConfig) -> str:
    """What else decides answers where a model is more than a plain Llama: windows, scales, a second rope; else ""."""
    plain = {each.name: each.default for each in fields(ModelConfig)}
    own = [each.name for each in fields(config) if each.name not in plain]
    stated = {name: getattr(config, name) for name in ("rope_amplitude", "windows", *own)}
    return "".join(f"{name} {value}" for name, value in stated.items() if value != plain.get(name))


@cache
def shipped() -> dict[str, CanaryReference]:
    """The references that come with Polyfleet, by fingerprint."""
    entries: list[dict[str, Any]] = json.loads(SHIPPED.read_text(encoding="utf-8"))
    fields = ("prompt_ids", "token_ids", "margins")
    return {entry["fingerprint"]: CanaryReference(*(tuple(entry[name]) for name in fields)) for entry in entries}


def entry_of(path: str, context_length: int = 0) -> dict[str, Any]:
    """A model's entry for the shipped file, computed; `context_length` 0: the model's own."""
    from polyfleet.loading.load import load_model

    model = load_model(path)
    model = replace(model, config=model.config.served(context_length))
    found = most_decisive(compute_references(model, candidate_prompts(model.config.vocabulary_size)))
    fields = {name: list(getattr(found, name)) for name in ("prompt_ids", "token_ids", "margins")}
    return {"model": Path(path).stem, "fingerprint": fingerprint(model), **fields}


def end_with_parent() -> None:
    """End this process once nobody holds the other end of its input, as when the engine beside which it runs has gone:
    else all cores go on computing an answer that nobody reads.
    """

    def watch() -> None:
        while os.read(0, 1):  # and not by sys.stdin, whose lock would be held at the interpreter's end
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    if len(sys.argv) > 2:  # beside an engine that serves
        end_with_parent()
        if hasattr(os, "nice"):
            os.nice(NICENESS)
    print(json.dumps(entry_of(sys.argv[1], *map(int, sys.argv[2:]))))
