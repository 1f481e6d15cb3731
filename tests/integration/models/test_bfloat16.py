"""Architectures in bfloat16: no farther from the same weights' float32 than transformers' bfloat16 is."""

from collections.abc import Sequence
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

QUICK = ("gemma3",)  # whose gains leave 1 out
HIDDEN_GAIN = 0.0038  # which 1 beside it in bfloat16 would hide
PROMPTS, PROMPT_TOKENS = 8, (17, 24, 48)  # so many of each length
MARGIN = 1.2  # chance


@pytest.mark.parametrize("name", [pytest.param(each, marks=[pytest.mark.slow] * (each not in QUICK)) for each in TINY])
def test_errors_are_no_larger_than_transformers_own(name: str, tmp_path: Path) -> None:
    model = make(TINY[name], tmp_path).bfloat16()
    gains = [each.data for each in model.parameters() if each.dim() == 1 and name in QUICK]
    for gain in gains:
        gain.fill_(HIDDEN_GAIN)
    model.save_pretrained(tmp_path)
    draw = np.random.default_rng(5).integers
    prompts = [draw(3, VOCABULARY, (PROMPTS, length)).tolist() for length in PROMPT_TOKENS]
    truth, theirs = (_of_transformers(tmp_path, prompts, dtype) for dtype in (torch.float32, torch.bfloat16))
    ours = _ours(tmp_path, [ids for each in prompts for ids in each])
    assert _error(ours - truth) <= MARGIN * _error(theirs - truth)


def _error(differences: NDArray[np.float64]) -> float:
    """That of half of the prompts at most: in others, one of two precisions' rows may go to another expert."""
    return float(np.median(np.sqrt((differences**2).mean(1))))


def _of_transformers(folder: Path, prompts: Sequence[list[list[int]]], dtype: torch.dtype) -> NDArray[np.float64]:
    """Log probabilities behind each prompt. What is read anew in a dtype keeps its angles in float32, as
    `model.bfloat16()` does not."""
    from transformers import AutoModelForCausalLM

    read = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    with torch.inference_mode():
        logits = [read(torch.tensor(each)).logits[:, -1] for each in prompts]
    return torch.log_softmax(torch.cat(logits).double(), -1).numpy()


def _ours(folder: Path, prompts: Sequence[list[int]]) -> NDArray[np.float64]:
    """The same, by the eager executor in bfloat16."""
    model, capabilities = load_model(folder), KernelCapabilities(frozenset({"bfloat16"}), "bfloat16")
    graph = record(model.config, model.weights)
    executor: Any = EagerExecutor(Workload(graph, model.weights, EngineOptions(), "cpu", "bfloat16", capabilities))
    batcher = over(executor, BatchLimits(16, 512, 64, prefix_cache=False), num_blocks=64, block_size=16)
    found = np.empty((len(prompts), VOCABULARY))
    for number, ids in enumerate(prompts):
        batcher.add(SequenceRequest(str(number), tuple(ids), max_tokens=1, ignore_eos=True, logprobs=VOCABULARY))
    while batcher.has_work:
        for update in batcher.step().updates:
            assert not update.error
            (token,) = update.tokens
            found[int(update.sequence_id), list(token.top_ids)] = token.top_logprobs
    executor.close()
    return found
