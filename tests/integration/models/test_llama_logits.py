"""Tiny random Llama models against transformers in float32: every way to compute a prompt gives its logits.

Logits here are of order 1 to 10; both sides accumulate in float32 in another order, so they agree to about 1e-5.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.support.stepping import Driver, Run, logprobs_of
from tests.support.tiny_models import TinyShape, write_folder, write_gguf

from polyfleet.backends.protocol import KernelCapabilities
from polyfleet.engine.choosing.executors import Workload
from polyfleet.executors.eager import EagerExecutor
from polyfleet.loading.load import load_model
from polyfleet.models.registry import record
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import Pooling

TOLERANCE = 5e-5
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SHAPES = {
    "grouped": TinyShape(),
    "one KV head": TinyShape(heads=8, kv_heads=1, head_dim=6, tied=True),
    "biases": TinyShape(kv_heads=4, attention_bias=True, mlp_bias=True),
    "llama3 rope": TinyShape(rope=LLAMA3_ROPE, tied=True),
    "linear rope": TinyShape(rope={"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}),
}


def transformers_logprobs(folder: Path, token_ids: list[int]) -> NDArray[np.float64]:
    """Logprobs [tokens, vocabulary]."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        logits = model(torch.tensor([token_ids])).logits[0]
    values: NDArray[np.float64] = torch.log_softmax(logits.double(), dim=-1).numpy()
    return values


def driver(path: Path, num_blocks: int, block_size: int = 16, dtype: str = "float32") -> Driver:
    model = load_model(path)
    capabilities = KernelCapabilities(frozenset({dtype}), dtype)
    graph = record(model.config, model.weights)
    executor = EagerExecutor(Workload(graph, model.weights, EngineOptions(), "cpu", dtype, capabilities))
    return Driver(executor, num_blocks, block_size)


def random_ids(number: int, seed: int) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(0, 96, number).tolist()
    return ids


def assert_close(found: NDArray[np.float64], expected: NDArray[np.float64]) -> None:
    np.testing.assert_allclose(found, expected, atol=TOLERANCE, rtol=0)


def check(run: Run, expected: NDArray[np.float64]) -> None:
    """Each piece's logprobs are those behind its last token."""
    assert run.done
    for end, result in zip(run.ends, run.results, strict=True):
        assert_close(logprobs_of(result), expected[end - 1])


@pytest.mark.parametrize("name", list(SHAPES))
def test_whole_prompts_chunks_decodes_and_mixed_batches(name: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", SHAPES[name])
    steps = driver(folder, 60, 8)
    prompts = [random_ids(number, seed=number) for number in (37, 1, 90, 21, 64)]
    runs = [steps.begin(ids, num_logprobs=96) for ids in prompts]
    whole, single, chunked, decoded, late = runs
    steps.step([(whole, 37)])
    steps.step([(chunked, 13)])
    steps.step([(single, 1), (chunked, 30), (decoded, 5)])
    while not all(run.done for run in runs):
        sizes = ((decoded, 1), (chunked, 1), (late, 17))
        steps.step([(run, size) for run, size in sizes if not run.done])
    for run, ids in zip(runs, prompts, strict=True):
        check(run, transformers_logprobs(folder, ids))


@pytest.mark.parametrize("form", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K"])
def test_gguf_files_of_every_format(form: str, tmp_path: Path) -> None:
    """What is stored, dequantised by the `gguf` package and given to transformers, gives the same logits."""
    shape = TinyShape(hidden=256, intermediate=256, head_dim=64, tied=True)
    path = tmp_path / "model.gguf"
    folder = write_folder(tmp_path / "dense", shape, write_gguf(path, shape, form))
    ids = random_ids(40, seed=1)
    steps = driver(path, 8)
    run = steps.begin(ids, num_logprobs=96)
    steps.step([(run, 39)])
    steps.step([(run, 1)])
    check(run, transformers_logprobs(folder, ids))


def test_the_last_block_and_every_block_is_usable(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", TinyShape())
    steps = driver(folder, 5, 4)
    ids = random_ids(20, seed=2)
    run = steps.begin(ids, num_logprobs=96, blocks=[4, 0, 3, 1, 2])
    steps.step([(run, 20)])
    check(run, transformers_logprobs(folder, ids))


def test_pooled_hidden_states(tmp_path: Path) -> None:
    """MEAN gives sums that add up over chunks, LAST the last row, of transformers' final normalised states."""
    from transformers import LlamaForCausalLM

    folder = write_folder(tmp_path / "model", TinyShape())
    ids = random_ids(19, seed=3)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        states = model.model(torch.tensor([ids])).last_hidden_state[0].numpy()
    steps = driver(folder, 16, 4)
    runs = [steps.begin(ids, pooling=pooling) for pooling in (Pooling.MEAN, Pooling.LAST)]
    for size in (7, 12):
        steps.step([(run, size) for run in runs])
    assert all(result.token is None for run in runs for result in run.results)
    mean, last = np.zeros(64), runs[1].results[-1].pooled
    for result in runs[0].results:
        assert result.pooled is not None
        mean += result.pooled
    assert last is not None
    np.testing.assert_allclose(mean / 19, states.mean(axis=0), atol=TOLERANCE)
    np.testing.assert_allclose(last, states[-1], atol=TOLERANCE)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_dtypes_stay_near_float32(dtype: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", TinyShape())
    steps = driver(folder, 8, dtype=dtype)
    ids = random_ids(30, seed=4)
    run = steps.begin(ids, num_logprobs=96)
    steps.step([(run, 30)])
    difference = logprobs_of(run.results[0]) - transformers_logprobs(folder, ids)[-1]
    assert 1e-5 < float(np.abs(difference).max()) < (0.3 if dtype == "bfloat16" else 0.05)
