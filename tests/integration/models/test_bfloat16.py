"""Architectures in bfloat16: no farther from the same weights' float32 than transformers' bfloat16 is."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.support.batching import over
from tests.support.tiny_architectures import TINY, make
from tests.support.tiny_kinds import VOCABULARY

from polyfleet.backends.protocol import KernelCapabilities
from polyfleet.engine.batching.batch import BatchLimits
from polyfleet.engine.choosing.executors import Workload
from polyfleet.executors.eager import EagerExecutor
from polyfleet.loading.load import load_model
from polyfleet.models.registry import record
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import SequenceRequest

QUICK = ("gemma3",)  # whose gains are wide
PROMPT_TOKENS = range(8, 49, 4)
MARGIN = 1.25  # chance


@pytest.mark.parametrize("name", [pytest.param(each, marks=[pytest.mark.slow] * (each not in QUICK)) for each in TINY])
def test_errors_are_no_larger_than_transformers_own(name: str, tmp_path: Path) -> None:
    exact = make(TINY[name], tmp_path).bfloat16()
    exact.save_pretrained(tmp_path)
    rounded, exact = deepcopy(exact), exact.float()
    ids = np.random.default_rng(5).integers(3, VOCABULARY, PROMPT_TOKENS[-1]).tolist()
    with torch.inference_mode():
        truth, theirs = (
            torch.log_softmax(each(torch.tensor([ids])).logits[0].double(), -1).numpy() for each in (exact, rounded)
        )
    at = [count - 1 for count in PROMPT_TOKENS]
    assert _error(_logprobs(tmp_path, ids) - truth[at]) <= MARGIN * _error(theirs[at] - truth[at])


def _error(differences: NDArray[np.float64]) -> float:
    return float(np.sqrt((differences**2).mean()))


def _logprobs(folder: Path, ids: list[int]) -> NDArray[np.float64]:
    """Behind each beginning of the prompt, by the eager executor in bfloat16."""
    model, capabilities = load_model(folder), KernelCapabilities(frozenset({"bfloat16"}), "bfloat16")
    graph = record(model.config, model.weights)
    executor: Any = EagerExecutor(Workload(graph, model.weights, EngineOptions(), "cpu", "bfloat16", capabilities))
    batcher = over(executor, BatchLimits(16, 512, 64, prefix_cache=False), num_blocks=64, block_size=16)
    found = np.empty((len(PROMPT_TOKENS), VOCABULARY))
    for number, count in enumerate(PROMPT_TOKENS):
        request = SequenceRequest(str(number), tuple(ids[:count]), max_tokens=1, ignore_eos=True, logprobs=VOCABULARY)
        batcher.add(request)
    while batcher.has_work:
        for update in batcher.step().updates:
            assert not update.error
            (token,) = update.tokens
            found[int(update.sequence_id), list(token.top_ids)] = token.top_logprobs
    executor.close()
    return found
