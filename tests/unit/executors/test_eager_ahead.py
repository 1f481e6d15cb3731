"""Steps planned ahead of collected ones come to the same tokens, on tensors of the CPU."""

import itertools
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.batching import Outcomes, run_all
from tests.support.batching import request as make_request
from tests.support.eager_models import POISON, poison, tiny_model, workload
from tests.support.stepping import GARBAGE

from polyfleet.engine.batching.batch import BatchLimits
from polyfleet.engine.batching.batcher import Batcher
from polyfleet.engine.executor import Capacity
from polyfleet.engine.step.plan import StepPlan
from polyfleet.executors.eager import EagerExecutor
from polyfleet.loading.model import LoadedModel
from polyfleet.sampling.device import DeviceSampler
from polyfleet.sampling.host import HostSampler
from polyfleet.wire.sampling import SamplingParams


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return tiny_model(tmp_path_factory.mktemp("eager") / "model")


@pytest.fixture(scope="module")
def poisoned(model: LoadedModel) -> LoadedModel:
    return poison(model)


class Scribbled:
    """An EagerExecutor that is lent copies of all arrays of a plan, which turn to garbage behind `launch`."""

    def __init__(self, inner: EagerExecutor) -> None:
        self._inner = inner
        self.launches: list[list[int]] = []  # token ids

    def launch(self, plan: StepPlan) -> Any:
        lent = {each.name: getattr(plan, each.name) for each in fields(plan)}
        copies = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in lent.items()}
        self.launches.append(plan.token_ids.tolist())
        pending = self._inner.launch(StepPlan(**copies))
        for value in copies.values():
            if isinstance(value, np.ndarray) and value.dtype == np.int32:
                value[:] = GARBAGE
            elif isinstance(value, np.ndarray):
                value[:] = np.zeros(1, dtype=value.dtype)
        return pending

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


PARAMS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.0, repetition_penalty=1.3, frequency_penalty=0.5),
    SamplingParams(temperature=1.0, seed=5, top_k=20),
    SamplingParams(temperature=0.8, seed=9, top_p=0.9, presence_penalty=0.7),
)


def run_batch(
    model: LoadedModel, depth: int, num_blocks: int = 40, ends: Sequence[int] = (), count: int = 12
) -> tuple[Outcomes, Any]:
    """Sequences of mixed sampling through a Batcher."""
    executor = Scribbled(EagerExecutor(workload(model), depth=depth))
    capacity = Capacity(num_blocks, 4, 6, 32, 24)
    executor.allocate(capacity)
    batcher = Batcher(executor, capacity, BatchLimits(6, 24, min(128, num_blocks * 4), frozenset(ends)))
    for number in range(count):
        changes = {"logprobs": 2 if number % 3 == 0 else None, "sampling": PARAMS[number % 4]}
        batcher.add(make_request(number, 3 + 5 * (number % 5), 4 + 3 * (number % 4), **changes))
    return run_all(batcher), (batcher, executor)


@pytest.mark.parametrize("num_blocks", [80, 10])  # with room for all, and with preemptions
def test_two_steps_at_once_come_to_the_same_tokens(model: LoadedModel, num_blocks: int) -> None:
    expected, _ = run_batch(model, 1, num_blocks)
    ends = (expected["s2"].token_ids[4], expected["s7"].token_ids[3])
    for end_ids in ((), ends):
        expected, _ = run_batch(model, 1, num_blocks, end_ids)
        found, (batcher, executor) = run_batch(model, 2, num_blocks, end_ids)
        assert {name: each.token_ids for name, each in found.items()} == {
            name: each.token_ids for name, each in expected.items()
        }
        assert not any(each.error for each in found.values())
        assert any(token_id < 0 for ids in executor.launches for token_id in ids), "no step was planned ahead"
        assert (batcher.counters.preemptions > 0) == (num_blocks == 10)
        assert (batcher.counters.dropped_rows > 0) == bool(end_ids)


@pytest.mark.parametrize(("depth", "stage"), [(1, "draw"), (2, "launch")])
def test_steps_without_memory_lose_nobody(
    model: LoadedModel, depth: int, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, and then twice in a row: the smaller step is too large as well."""
    expected, _ = run_batch(model, depth, count=3)
    short = {2, 5, 6}
    owner: Any = EagerExecutor if stage == "launch" else DeviceSampler if depth > 1 else HostSampler
    name = "_launch" if stage == "launch" else "draw"
    call, calls = getattr(owner, name), itertools.count(1)

    def scripted(*given: Any) -> Any:
        if next(calls) in short:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nand more")
        return call(*given)

    monkeypatch.setattr(owner, name, scripted)
    found, (batcher, _) = run_batch(model, depth, count=3)
    assert batcher.counters.memory_shortages == len(short)
    assert not any(each.error for each in found.values())
    assert {name: each.token_ids for name, each in found.items()} == {
        name: each.token_ids for name, each in expected.items()
    }
    assert batcher.ledger.finished == len(found) == 3


def test_a_poisoned_block_is_clear_for_its_next_owner_while_steps_run_ahead(
    model: LoadedModel, poisoned: LoadedModel
) -> None:
    """All blocks are used by sequences that come to no finite numbers, then by others beside which they run."""

    def run(model: LoadedModel, numbers: Sequence[int], poison: bool) -> Outcomes:
        executor, capacity = Scribbled(EagerExecutor(workload(model), depth=2)), Capacity(12, 16, 4, 12, 64)
        executor.allocate(capacity)
        batcher = Batcher(executor, capacity, BatchLimits(4, 64, 96, prefix_cache=False))
        if poison:
            for number in range(8):
                batcher.add(replace(make_request(100 + number, 40), prompt_ids=(1,) * 36 + (POISON,) * 4))
        for number in numbers:
            batcher.add(make_request(number, 20 + number, 12))
        return run_all(batcher)

    numbers = range(1, 7)
    expected, found = run(model, numbers, False), run(poisoned, numbers, True)
    assert all(found[f"s{100 + number}"].error for number in range(8))
    for number in numbers:
        assert found[f"s{number}"].token_ids == expected[f"s{number}"].token_ids
        assert found[f"s{number}"].error == ""
