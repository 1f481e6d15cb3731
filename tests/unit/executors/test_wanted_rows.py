"""Rows that nobody reads: behind the last attention the eager executor computes wanted ones alone, to the same end."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.batching import request as make_request
from tests.support.eager_models import SHAPE, tiny_model, workload
from tests.support.peft_folders import low_rank_tensors, write_adapter
from tests.support.stepping import Driver
from tests.support.tiny_models import random_tensors
from torch.overrides import TorchFunctionMode

from polyfleet.engine.batching.batch import BatchLimits
from polyfleet.engine.batching.batcher import Batcher
from polyfleet.engine.executor import Capacity
from polyfleet.engine.step.needs import Need
from polyfleet.executors.eager import EagerExecutor
from polyfleet.graph.adapt import adaptable
from polyfleet.loading.adapter import load_adapter
from polyfleet.loading.model import LoadedModel
from polyfleet.wire.answers import SampledToken
from polyfleet.wire.requests import Pooling

PRODUCTS = (torch.mm, torch.addmm)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return tiny_model(tmp_path_factory.mktemp("wanted") / "model")


class Products(TorchFunctionMode):
    """Notes how many rows each product with a weight has."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []

    def __torch_function__(self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if function in PRODUCTS:
            self.rows.append(len(args[-2]))
        return function(*args, **(kwargs or {}))


def products(model: LoadedModel, **how: Any) -> list[int]:
    """Rows of all products of a step with nine rows of one sequence and two of another, which draws."""
    steps = Driver(EagerExecutor(workload(model), depth=1), 8)
    pieces = [(steps.begin([7, 8]), 2), (steps.begin(range(1, 12), **how), 9)]
    noted = Products()
    with noted:
        steps.step(pieces)
    return noted.rows


def test_the_last_layers_products_see_the_wanted_rows_alone(model: LoadedModel) -> None:
    layer = ["qkv", "output", "gate_up", "down"]
    before = [11] * (len(layer) * (SHAPE.layers - 1) + 1)
    assert products(model, draws=False) == [*before, 1, 1, 1, 1]
    assert products(model) == [*before, 2, 2, 2, 2]
    assert products(model, pooling=Pooling.MEAN) == [11] * len(layer) * SHAPE.layers + [1]


def test_a_part_of_a_prompt_ends_with_its_keys_and_values(model: LoadedModel) -> None:
    steps = Driver(EagerExecutor(workload(model), depth=1), 8)
    run = steps.begin(range(1, 12), draws=False)
    noted = Products()
    with noted:
        steps.step([(run, 9)])
    assert noted.rows[-5:] == [9, 0, 0, 0, 0]


def test_wanted_rows_have_their_own_adapters(
    model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts in parts, beside others: as where all rows go on to the end, and not what they are without adapters."""
    base = random_tensors(SHAPE)
    executor = EagerExecutor(workload(model, max_adapters=2, max_rank=8), depth=1)
    names = adaptable(workload(model).graph)
    for number, rank in enumerate((3, 8)):
        folder = write_adapter(tmp_path / str(number), low_rank_tensors(base, rank=rank, seed=rank, size=0.3))
        executor.set_adapter(number, load_adapter(folder, model.config, names, 8).parts)
    found, plain = sampled(executor, [1, -1, 0, 1]), sampled(executor, [-1] * 4)
    whole = executor._programs
    monkeypatch.setattr(executor, "_program_of", lambda plan: whole[True, bool(plan.needs & Need.ADAPTERS)])
    expected = sampled(executor, [1, -1, 0, 1])
    for name, tokens in expected.items():
        assert [each.token_id for each in found[name]] == [each.token_id for each in tokens]
        assert [each.logprob for each in found[name]] == pytest.approx([each.logprob for each in tokens], abs=1e-4)
    assert [found[name] == plain[name] for name in sorted(found)] == [False, True, False, False]


def sampled(executor: EagerExecutor, adapters: list[int]) -> dict[str, list[SampledToken]]:
    """Behind prompts with these adapters, in steps of twelve rows at most."""
    capacity = Capacity(16, 16, 4, 6, 12)
    executor.allocate(capacity)
    batcher = Batcher(executor, capacity, BatchLimits(4, 12, 96, prefix_cache=False))
    for number, adapter in enumerate(adapters):
        batcher.add(make_request(number, (15, 4, 9, 20)[number], 4, logprobs=3), adapter=adapter)
    found: dict[str, list[SampledToken]] = {}
    while batcher.has_work:
        for update in batcher.step().updates:
            found.setdefault(update.sequence_id, []).extend(update.tokens)
    return found
