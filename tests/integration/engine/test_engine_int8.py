"""Engines with caches in int8: prefixes, chunks, preemptions, and blocks in host memory and on disk change nothing."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.cpu_graphs import needs_library
from tests.support.tiny_architectures import TINY, make
from tests.support.tiny_models import TinyShape, write_folder

from polyfleet.engine.engine import Engine
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import SequenceRequest

pytestmark = needs_library

PROMPTS = [tuple(np.random.default_rng(seed).integers(3, 90, size=70).tolist()) for seed in range(4)]
Answers = Mapping[str, list[tuple[int, float]]]  # of each sequence tokens and log probabilities


def made(path: Path, **given: Any) -> Engine:
    sizes = {"context_length": 128, "kv_cache_tokens": 1024, "max_sequences": 4, "step_tokens": 96, "block_size": 16}
    options: dict[str, Any] = {"device": "cpu", "executor": "persistent", "kv_dtype": "int8", "threads": 1}
    return Engine.load(str(path), EngineOptions(**{**options, **sizes, **given}))


def answers(target: Engine, *, together: bool = True) -> Answers:
    """Of all prompts, at once or one after the other."""
    found: dict[str, list[tuple[int, float]]] = {}
    for number, prompt in enumerate(PROMPTS):
        target.add(SequenceRequest(str(number), prompt, max_tokens=50, ignore_eos=True, logprobs=1))
        if not together:
            run(target, found)
    run(target, found)
    return found


def run(target: Engine, found: dict[str, list[tuple[int, float]]]) -> None:
    while target.has_work:
        for update in target.step():
            assert not update.error
            found.setdefault(update.sequence_id, []).extend((each.token_id, each.logprob) for each in update.tokens)
        target.check()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("int8"), TinyShape())


@pytest.fixture(scope="module")
def expected(path: Path) -> Answers:
    target = made(path)
    found = answers(target)
    target.close()
    return found


def test_however_the_pool_is_used_the_answers_are_the_same(path: Path, expected: Answers, tmp_path: Path) -> None:
    """To the bit: in small chunks, preempted, from the prefix cache, from host memory and, in another engine, disk."""
    chunked = made(path, step_tokens=24)
    assert answers(chunked) == expected
    assert answers(chunked) == expected
    assert chunked.status().prefix_hit_tokens >= 4 * 64
    preempted = made(path, kv_cache_tokens=208, prefix_cache=False)
    assert answers(preempted) == expected
    assert preempted.status().preemptions > 0
    sizes = {"kv_cache_tokens": 160, "host_cache_tokens": 96, "disk_cache_dir": str(tmp_path)}
    tiered = made(path, **sizes)
    assert [answers(tiered, together=False) for _ in range(3)] == [expected] * 3
    assert tiered.status().restored_tokens > 0
    tiered.close()
    later = made(path, **sizes)
    assert answers(later, together=False) == expected
    assert later.status().disk_tokens > 0
    assert sum(later.status().disk_problems) == 0
    for each in (chunked, preempted, later):
        each.close()


def test_the_same_memory_has_room_for_twice_the_tokens(path: Path) -> None:
    """But for scales: heads of 16 have 2 bytes each beside their 16."""
    sizes = {"kv_cache_tokens": 0, "context_length": 0, "max_sequences": 0}
    wide, narrow = made(path, kv_dtype="auto", **sizes), made(path, **sizes)
    assert narrow._executor.measure().kv_per_token * 32 == wide._executor.measure().kv_per_token * 18
    for each in (wide, narrow):
        each.close()


@pytest.mark.parametrize("architecture", ["deepseek3", "gemma3", "gpt-oss", "qwen3next"])
def test_models_of_every_cache(architecture: str, tmp_path: Path) -> None:
    """Latent ones, in two pools, with sinks, beside states: both executors round alike, and by less than fp8."""
    make(TINY[architecture], tmp_path)
    prompt = tuple(number % 150 + 3 for number in range(50))

    def scores(executor: str, kind: str) -> NDArray[np.float64]:
        dtype = "float32" if executor == "eager" else "auto"
        target = made(tmp_path, executor=executor, kv_dtype=kind, dtype=dtype)
        target.add(SequenceRequest("s", prompt, max_tokens=1, prompt_logprobs=0))
        found = list[float]()
        while target.has_work:
            found += [token.logprob for update in target.step() for token in update.prompt_logprobs]
        target.close()
        return np.array(found)

    unrounded, codes, bytes_ = (scores("eager", kind) for kind in ("auto", "int8", "fp8"))
    assert len(unrounded) == len(prompt) - 1
    assert 0 < np.abs(codes - unrounded).mean() < np.abs(bytes_ - unrounded).mean()
    assert np.abs(scores("persistent", "int8") - codes).mean() < 1e-3
