"""Our engine on the device, without a worker around it: Batcher over the device's best executor."""

import gc
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

import torch
from bench.card.account import Timed
from bench.card.shapes import BLOCK_SIZE, SHAPES, Shape, random_model

from polyfleet.engine.batching.batch import BatchLimits
from polyfleet.engine.batching.batcher import Batcher
from polyfleet.engine.choosing.executors import ExecutorKind, Workload, candidates, first_that_works, refuse
from polyfleet.engine.choosing.machines import open_machine
from polyfleet.engine.choosing.sizing import capacity_of
from polyfleet.engine.engine import Engine
from polyfleet.engine.executor import Capacity, Executor
from polyfleet.models.registry import record
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import SequenceRequest
from polyfleet.wire.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0.0)
STEP_TOKENS, STEP_SECONDS = 8192, 60.0  # the latter bounds nothing
Prompts = Sequence[Sequence[int]]


class Ours:
    """A model of some shape on its executor."""

    def __init__(self, shape: Shape, options: EngineOptions, capacity: Capacity, dtype: str = "") -> None:
        """`dtype` empty: bfloat16. The executor is what `options` mean there."""
        dtype = dtype or "bfloat16"
        machine, facts = open_machine(options.device, 1)
        model = random_model(shape, machine.device, getattr(torch, dtype))
        options = replace(options, block_size=capacity.block_size)
        work = Workload(record(model.config, model.weights), model.weights, options, machine.device, dtype, facts)

        started = time.perf_counter()
        kinds = candidates(options, machine.device, facts)
        executor, _ = first_that_works(kinds, lambda kind: _built(kind, work))
        self.executor = Timed(executor)
        built = time.perf_counter()
        self.executor.allocate(capacity)
        self.start_seconds = built - started, time.perf_counter() - built  # to build it; to allocate and capture
        self.shape, self.capacity, self.device = shape, capacity, torch.device(machine.device)

    def batcher(self, sequences: int) -> Batcher:
        """A new one, with nothing cached."""
        context = self.capacity.max_blocks * self.capacity.block_size
        limits = BatchLimits(sequences, self.capacity.step_tokens, context, prefix_cache=False)
        return Batcher(cast(Executor, self.executor), self.capacity, limits)

    def seconds(self, prompts: Prompts, new_tokens: int) -> float:
        """From the first request until every sequence has its tokens."""
        batcher, count = self.batcher(len(prompts)), 0
        started = time.perf_counter()
        for number, prompt in enumerate(prompts):
            batcher.add(request(number, prompt, new_tokens))
        while batcher.has_work:
            for update in batcher.step().updates:
                if update.error:
                    raise RuntimeError(update.error)
                count += len(update.tokens)
        if count != len(prompts) * new_tokens:
            raise RuntimeError(f"{count} tokens instead of {len(prompts) * new_tokens}")
        return time.perf_counter() - started

    @contextmanager
    def decoding(self, prompts: Prompts, new_tokens: int) -> Iterator[Batcher]:
        """A Batcher all of whose sequences decode."""
        batcher = self.batcher(len(prompts))
        for number, prompt in enumerate(prompts):
            batcher.add(request(number, prompt, new_tokens))
        while batcher.uncomputed_tokens > len(prompts):
            batcher.step()
        for _ in range(8):
            batcher.step()
        yield batcher
        for number in range(len(prompts)):
            batcher.cancel(str(number))
        while batcher.has_work:
            batcher.step()

    def close(self) -> None:
        """Leave the device's memory to the next."""
        self.executor.close()
        del self.executor
        gc.collect()
        if self.device.type != "cpu":
            torch.get_device_module(self.device).empty_cache()


def random_engine(name: str, options: EngineOptions, dtype: str = "bfloat16") -> Engine:
    """A whole engine of a shape of SHAPES; `options` have context, pool and sequences."""
    machine, facts = open_machine(options.device, 1)
    model = random_model(SHAPES[name], machine.device, getattr(torch, dtype))
    seconds = options.step_seconds or STEP_SECONDS
    options = replace(options, block_size=BLOCK_SIZE, step_tokens=options.step_tokens or STEP_TOKENS)
    options = replace(options, step_seconds=seconds, canary=False)
    options = replace(options, kv_cache_tokens=-(-options.kv_cache_tokens // BLOCK_SIZE) * BLOCK_SIZE)
    work = Workload(record(model.config, model.weights), model.weights, options, machine.device, dtype, facts)
    kinds = candidates(options, machine.device, facts)
    executor, _ = first_that_works(kinds, lambda kind: _built(kind, work))
    executor.allocate(capacity_of(options))
    return Engine(executor, model.config, options, fingerprint=name)


def _built(kind: ExecutorKind, work: Workload) -> Executor:
    refuse(kind, work)
    return kind.build(work, lambda share: None)


def request(number: int, prompt: Sequence[int], new_tokens: int) -> SequenceRequest:
    """A greedy one, to its last token."""
    return SequenceRequest(str(number), tuple(prompt), GREEDY, max_tokens=new_tokens, ignore_eos=True)


def random_prompts(count: int, length: int, vocabulary: int, seed: int) -> list[list[int]]:
    """That nobody has cached."""
    drawn = random.Random(f"{count}/{length}/{seed}")
    return [[drawn.randrange(16, vocabulary - 16) for _ in range(length)] for _ in range(count)]
