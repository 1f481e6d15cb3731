"""What stands beside dense layers, captured: mixtures and states come to the eager executor's tokens."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.interpreted.test_captured import Replays, capturing, few_mixed
from tests.support.batching import request as make_request
from tests.support.batching import run_all
from tests.support.eager_models import workload
from tests.support.tiny_architectures import TINY, make

from polyfleet.engine.batching.batch import BatchLimits
from polyfleet.engine.batching.batcher import Batcher
from polyfleet.engine.executor import Capacity
from polyfleet.executors.captured import CapturedExecutor
from polyfleet.executors.eager import EagerExecutor
from polyfleet.loading.load import load_model

__all__ = ["few_mixed"]  # a fixture
pytestmark = pytest.mark.usefixtures("undivided")
TOKENS = 3
KINDS: Mapping[str, Mapping[str, Any]] = {  # of two layers
    "qwen3next": {"layer_types": ["linear_attention", "full_attention"]},
    "granite4": {"layer_types": ["linear_attention", "full_attention"]},
    "gpt-oss": {"layer_types": ["sliding_attention", "full_attention"]},
    "smollm3": {"no_rope_layers": [1, 0]},
}
NAMES = ("gpt-oss", "granite4", "qwen3next", pytest.param("smollm3", marks=pytest.mark.slow))


@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_the_eager_executors(name: str, tmp_path: Path) -> None:
    """Three sequences of which one ends before the others, and of which a part draws nothing."""
    tiny = TINY[name]
    make(replace(tiny, config={**tiny.config, "num_hidden_layers": 2, **KINDS.get(name, {})}), tmp_path)
    model = load_model(tmp_path)
    found = []
    replays = Replays()
    work = capturing(model)
    assert CapturedExecutor.refuses(work) == ""
    for executor in (EagerExecutor(workload(model), depth=1), CapturedExecutor(work, depth=2, capture=replays)):
        local = 12 if executor.separates_windows and work.graph.local_caches else 0
        capacity = Capacity(12, 16, 3, 6, 24, local_blocks=local)
        executor.allocate(capacity)
        window = model.config.local_window if local else 0
        batcher = Batcher(executor, capacity, BatchLimits(3, 24, 96, prefix_cache=False, window=window))
        for number, length in enumerate((26, 3, 5)):
            batcher.add(make_request(number, length, TOKENS - (number == 0)))
        found.append({name: each.token_ids for name, each in run_all(batcher).items()})
    assert replays.replayed >= 1
    assert found[0] == found[1]
    assert len(found[0]["s2"]) == TOKENS
