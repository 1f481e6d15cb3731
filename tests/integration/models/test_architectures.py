"""Every architecture against transformers, in float32: logits and greedy tokens, however the rows are computed."""

from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.batching import over
from tests.support.tiny_architectures import TINY, make
from tests.support.tiny_encoders import ENCODERS
from tests.support.tiny_gguf import write_gguf
from tests.support.tiny_kinds import VOCABULARY

from polyfleet.backends.protocol import KernelCapabilities
from polyfleet.engine.batching.batch import BatchLimits
from polyfleet.engine.choosing.executors import Workload
from polyfleet.executors.eager import EagerExecutor
from polyfleet.executors.persistent import PersistentExecutor
from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel
from polyfleet.models.registry import ARCHITECTURES, record
from polyfleet.wire.answers import SampledToken
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import SequenceRequest

TOLERANCES = {"eager": 2e-4, "persistent": 6e-2}  # of logprobs: the CPU library's cache has half precision
NEW_TOKENS = 32
# Parts that others have, put together in no new way:
ALIKE = (
    "exaone, written by transformers",
    *("qwen3.5", "qwen3.5moe", "dots1", "glm4flash", "mistral, ministral 3", "granite4, dense", "granite4, no states"),
    *("bamba", "gpt_neox, one behind the other", "falcon, one behind the other", "falcon, one norm"),
    *("cwm", "hunyuan3", "jais2", "solar", "youtu"),
)
LENGTHS = (40, 3, 70, 40)  # of prompts; the fourth begins as the first does


@cache
def _folders() -> Any:
    return TemporaryDirectory()


@cache
def checkpoint(name: str) -> tuple[Path, Any]:
    """A folder and transformers' model, made once."""
    folder = Path(_folders().name) / name
    return folder, make(TINY[name], folder)


def executor_of(kind: str, model: LoadedModel) -> EagerExecutor | PersistentExecutor:
    graph = record(model.config, model.weights)
    if kind == "persistent":
        return PersistentExecutor(graph, model.weights, threads=1, reproducible=True)
    capabilities = KernelCapabilities(frozenset({"float32"}), "float32")
    return EagerExecutor(Workload(graph, model.weights, EngineOptions(), "cpu", "float32", capabilities))


def prompts() -> list[list[int]]:
    random = np.random.default_rng(5)
    found: list[list[int]] = [random.integers(3, VOCABULARY, length).tolist() for length in LENGTHS]
    found[3][:35] = found[0][:35]
    return found


def generate(kind: str, model: LoadedModel) -> list[list[SampledToken]]:
    """Tokens behind each prompt: of the first alone, then of all others together in too small a pool, in chunks."""
    executor: Any = executor_of(kind, model)
    reuse, horizon = not record(model.config, model.weights).states, model.config.horizon
    window = model.config.local_window
    limits = BatchLimits(4, 32, 128, prefix_cache=reuse, horizon=horizon, window=window)
    batcher = over(executor, limits, num_blocks=12, block_size=16, local_blocks=10 if window else 0)
    tokens: dict[str, list[SampledToken]] = {}
    for wave in ([0], [1, 2, 3]):
        for number in wave:
            prompt = tuple(prompts()[number])
            batcher.add(
                SequenceRequest(str(number), prompt, max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=VOCABULARY)
            )
        while batcher.has_work:
            for update in batcher.step().updates:
                assert not update.error
                tokens.setdefault(update.sequence_id, []).extend(update.tokens)
            batcher.check()
    assert batcher.counters.preemptions > 0 or horizon, "blocks that come back are enough"
    assert batcher.counters.prefix_hit_tokens >= 32 * reuse  # of the prompt that begins as the first does
    executor.close()
    return [tokens[str(number)] for number in range(len(LENGTHS))]


@pytest.mark.parametrize("kind", TOLERANCES)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in ALIKE)) for name in TINY])
def test_logits_and_greedy_tokens(name: str, kind: str) -> None:
    (folder, reference), tolerance = checkpoint(name), max(TOLERANCES[kind], TINY[name].tolerance)
    for prompt, tokens in zip(prompts(), generate(kind, load_model(folder)), strict=True):
        ids = [each.token_id for each in tokens]
        assert len(ids) == NEW_TOKENS
        with torch.inference_mode():
            logits = reference(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        expected = torch.log_softmax(logits.double(), -1).numpy()
        found = np.empty(expected.shape)
        for row, token in zip(found, tokens, strict=True):
            row[list(token.top_ids)] = token.top_logprobs
        np.testing.assert_allclose(found, expected, atol=tolerance, rtol=0)
        assert (expected.max(-1) - expected[range(NEW_TOKENS), ids]).max() <= tolerance


@pytest.mark.parametrize("name", [name for name, tiny in TINY.items() if tiny.gguf])
def test_gguf_files_hold_the_same_model(name: str, tmp_path: Path) -> None:
    """The same program over the same numbers: so the same tokens."""
    folder, reference = checkpoint(name)
    write_gguf(TINY[name], reference, tmp_path / "model.gguf")
    one, other = load_model(folder), load_model(tmp_path / "model.gguf")
    assert record(one.config, one.weights).caches == record(other.config, other.weights).caches
    for mine, theirs in zip(*(record(each.config, each.weights).ops for each in (one, other)), strict=True):
        assert replace(mine, attributes=None) == replace(theirs, attributes=None)
        assert_alike(mine.attributes, theirs.attributes)
    assert one.weights.keys() == other.weights.keys()
    for key, weight in one.weights.items():
        np.testing.assert_array_equal(weight.data.numpy(), other.weights[key].data.numpy(), err_msg=key)


def assert_alike(one: Any, other: Any) -> None:
    """GGUF's numbers have 32 bits."""
    if is_dataclass(one):
        assert type(one) is type(other)
        for each in fields(one):
            assert_alike(getattr(one, each.name), getattr(other, each.name))
    elif isinstance(one, tuple | float):
        assert one == pytest.approx(other, rel=1e-6)
    else:
        assert one == other


def test_every_architecture_is_tried() -> None:
    elsewhere = {"minicpm", *(name.partition(",")[0] for name in ENCODERS)}
    elsewhere |= {name for name in ARCHITECTURES if name.endswith("cross_encoder")}  # test_cross_encoders.py
    assert {name.partition(",")[0] for name in TINY} | elsewhere == set(ARCHITECTURES)
