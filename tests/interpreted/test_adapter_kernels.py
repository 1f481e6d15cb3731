"""Low-rank adapters in Triton against the reference, and in captured steps against eager ones and merged weights."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.interpreted.test_captured import Replays, capturing
from tests.support.batching import Outcomes, run_all
from tests.support.batching import request as make_request
from tests.support.eager_models import SHAPE, workload
from tests.support.kernel_cases import make_context, make_step
from tests.support.peft_folders import low_rank_tensors, merged, write_adapter
from tests.support.tiny_models import random_tensors, write_folder

from polyfleet.engine.batching.batch import BatchLimits
from polyfleet.engine.batching.batcher import Batcher
from polyfleet.engine.executor import Capacity
from polyfleet.executors import captured
from polyfleet.executors.captured import CapturedExecutor, buckets
from polyfleet.executors.eager import EagerExecutor
from polyfleet.graph.adapt import adaptable
from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.graph.ops import Op, OpKind
from polyfleet.kernels.adapters import AdapterTables, LowRank
from polyfleet.kernels.torch.adapting import ADAPTERS
from polyfleet.kernels.triton import TRITON
from polyfleet.kernels.triton import adapters as adapter_kernels
from polyfleet.loading.adapter import load_adapter
from polyfleet.loading.load import load_model

KERNEL = next(each for each in TRITON if each.op is OpKind.ADAPT)
NUMBER, RANK = 5, 8  # adapters that there is room for, and their rank
CAPACITY = Capacity(12, 16, 2, 6, 24)
ROWS = {"q": 300, "k": 24, "v": 24}


def rows_of(count: int, case: str) -> torch.Tensor:
    """The adapter of each row."""
    if case == "mixed":
        return torch.randint(-1, NUMBER, (count,))
    return torch.full((count,), -1 if case == "none" else 3)


@pytest.mark.parametrize(("count", "case", "columns"), [(37, "mixed", 200), (17, "none", 96), (5, "mixed", 2100)])
def test_each_row_gets_its_own(count: int, case: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of many rows come from 32 rows on."""
    monkeypatch.setattr(adapter_kernels, "FEW_ROWS", 32)
    torch.manual_seed(count)
    weights = {name: torch.zeros(rows, columns) for name, rows in ROWS.items()}
    context = make_context(weights=weights)
    op = Op(OpKind.ADAPT, (1, 2), (3,), tuple(ROWS))
    graph = KernelGraph((op,), (1, columns, 348, 348), (), (3,))
    tables = AdapterTables(graph, context.weights, NUMBER, RANK, torch.float32, torch.device("cpu"))
    for number in range(NUMBER):  # one has fewer ranks, and changes one weight alone
        rank, names = (3, ["k"]) if number == 2 else (RANK, list(ROWS))
        tables.set(number, {name: LowRank(torch.randn(rank, columns), torch.randn(ROWS[name], rank)) for name in names})
    adapters, x, y = rows_of(count, case), torch.randn(count, columns), torch.randn(count, sum(ROWS.values()))
    step = replace(make_step([(1, 0)]), adapters=adapters.int(), host_adapters=adapters.numpy())
    context = replace(context, adapters=tables)
    found, expected = (
        each.bind(op, context)(each.plan(context, step, None), x, y.clone()) for each in (KERNEL, ADAPTERS[0])
    )
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-4)
    assert case != "none" or torch.equal(found, y)


SMALL = replace(SHAPE, layers=1)


def run(executor: EagerExecutor, numbers: list[int]) -> Outcomes:
    """A prompt with each of these adapters, two at a time."""
    batcher = Batcher(executor, CAPACITY, BatchLimits(2, 24, 96, prefix_cache=False))
    for index, number in enumerate(numbers):
        batcher.add(make_request(index, 4 + index, 3), adapter=number)
    return run_all(batcher)


@pytest.mark.usefixtures("undivided")
def test_captured_steps_with_adapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One graph serves whichever adapters there are, also when they change; tokens are those of merged weights."""
    monkeypatch.setattr(captured, "CAPTURE_SECONDS", 1e9)
    base = random_tensors(SMALL)
    adapters = [low_rank_tensors(base, rank=rank, seed=rank, size=0.3) for rank in (3, 8)]
    wanted = []
    for number, tensors in enumerate([base, *(merged(base, each, 2.0) for each in adapters)]):
        model = load_model(write_folder(tmp_path / f"merged{number}", SMALL, tensors))
        eager = EagerExecutor(workload(model), depth=1)
        eager.allocate(CAPACITY)
        wanted.append(run(eager, [-1] * 3))
    model = load_model(tmp_path / "merged0")
    names = adaptable(workload(model).graph)
    folders = [write_adapter(tmp_path / str(number), each) for number, each in enumerate(adapters)]
    parts = [load_adapter(each, model.config, names, 8).parts for each in folders]
    replays = Replays()
    executor = CapturedExecutor(capturing(model, max_adapters=2, max_rank=8), depth=2, capture=replays)
    assert executor.implementations()["adapt"] == "triton"
    executor.allocate(CAPACITY)
    assert replays.captured == 2 * len(buckets(2))
    for swapped in (False, True):
        for number in range(2):
            executor.set_adapter(number, parts[number ^ swapped])
        found = run(executor, [0, 1, -1])
        for name, which in (("s0", 1 + swapped), ("s1", 2 - swapped), ("s2", 0)):
            assert found[name].token_ids == wanted[which][name].token_ids
    assert replays.captured == 2 * len(buckets(2))
    assert replays.replayed >= 4
