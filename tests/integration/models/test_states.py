"""Models whose sequences keep a state: rows come to the same however they are cut, whatever a slot held before."""

from pathlib import Path

import numpy as np
from tests.support.batching import over
from tests.support.tiny_architectures import TINY, make
from tests.support.tiny_kinds import VOCABULARY

from polyfleet.engine.batching.batch import BatchLimits
from polyfleet.engine.engine import Engine
from polyfleet.executors.persistent import PersistentExecutor
from polyfleet.loading.load import load_model
from polyfleet.models.registry import record
from polyfleet.wire.answers import SampledToken
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import SequenceRequest

PROMPT = tuple(np.random.default_rng(7).integers(3, VOCABULARY, 45).tolist())


def test_the_cpu_library_computes_the_same_bits_in_any_chunks_and_any_slot(tmp_path: Path) -> None:
    make(TINY["qwen3.5"], tmp_path)
    model = load_model(tmp_path)
    graph = record(model.config, model.weights)
    found: list[list[SampledToken]] = []
    for rows, others in ((64, 0), (7, 3)):
        executor = PersistentExecutor(graph, model.weights, threads=2, reproducible=True)
        batcher = over(executor, BatchLimits(2, rows, 64, prefix_cache=False), num_blocks=12, block_size=16)  # type: ignore[arg-type]
        for number in range(others):  # their slots are used again
            batcher.add(SequenceRequest(f"other {number}", PROMPT[number : 20 + number], max_tokens=3, ignore_eos=True))
        batcher.add(SequenceRequest("mine", PROMPT, max_tokens=5, ignore_eos=True, logprobs=VOCABULARY))
        tokens: list[SampledToken] = []
        while batcher.has_work:
            for update in batcher.step().updates:
                assert not update.error
                tokens += update.tokens if update.sequence_id == "mine" else ()
        executor.close()
        found.append(tokens)
    assert found[0] == found[1]


def test_an_engine_reads_no_prefix_twice_and_moves_none(tmp_path: Path) -> None:
    """Said at loading; requests are computed whole, and documents of prefixes are empty."""
    make(TINY["qwen3.5"], tmp_path)
    options = EngineOptions(device="cpu", threads=1, max_sequences=2, kv_cache_tokens=256, prefix_cache=True)
    engine = Engine.load(str(tmp_path), options)
    for name in ("one", "two"):
        engine.add(SequenceRequest(name, PROMPT, max_tokens=2, ignore_eos=True))
        while engine.has_work:
            assert not any(update.error for update in engine.step())
    assert not engine.options.prefix_cache
    assert engine.status().prefix_hit_tokens == 0
    document = engine.export_prefix(PROMPT)
    assert engine.import_prefix(document) == 0
    engine.check()
    engine.close()
