"""The captured executor, its graphs run anew each time: the same tokens as the eager one's on torch's kernels."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.batching import Outcomes, over, run_all
from tests.support.batching import request as make_request
from tests.support.eager_models import CAPABILITIES, POISON, poison, tiny_model, workload
from tests.support.tiny_architectures import TINY, make

from polyfleet.engine.batching.batch import BatchLimits
from polyfleet.engine.batching.batcher import Batcher
from polyfleet.engine.choosing.executors import Workload
from polyfleet.engine.executor import Capacity
from polyfleet.engine.step.plan import StepPlan
from polyfleet.executors import captured
from polyfleet.executors.captured import CapturedExecutor, buckets
from polyfleet.executors.eager import EagerExecutor
from polyfleet.kernels.triton.tuning import tuning
from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel
from polyfleet.wire.sampling import SamplingParams

pytestmark = pytest.mark.usefixtures("undivided")
PARAMS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.8, seed=9, top_p=0.9, presence_penalty=0.7),
)
CAPTURING = replace(CAPABILITIES, graph_capture=True, triton=True)
Work = Callable[[], None]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return tiny_model(tmp_path_factory.mktemp("captured") / "model")


class Replays:
    """Instead of graphs: work that is done again, counted."""

    def __init__(self) -> None:
        self.captured = self.replayed = 0

    def __call__(self, work: Work) -> Work:
        self.captured += 1

        def replay() -> None:
            self.replayed += 1
            work()

        return replay


def capturing(model: LoadedModel, **options: Any) -> Workload:
    return replace(workload(model, **options), capabilities=CAPTURING)


@pytest.fixture(autouse=True)
def few_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No graph of steps with prompts but where a test has some: the interpreter pays for each."""
    monkeypatch.setattr(captured, "MIXED", ())


def run_batch(executor: Any, num_blocks: int = 12) -> Outcomes:
    capacity = Capacity(num_blocks, 16, 3, 6, 24)
    executor.allocate(capacity)
    batcher = Batcher(executor, capacity, BatchLimits(3, 24, 96))
    for number in range(4):
        changes = {"logprobs": 2 if number == 3 else None, "sampling": PARAMS[number % len(PARAMS)]}
        batcher.add(make_request(number, 3 + 7 * (number % 3), 3 + number % 3, **changes))
    return run_all(batcher)


@pytest.mark.parametrize(("depth", "narrow"), [pytest.param(1, False, marks=pytest.mark.slow), (2, True)])
def test_the_same_tokens_with_graphs_and_without(
    model: LoadedModel, depth: int, narrow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captured, "tuning", lambda device: replace(tuning(device), narrow=4 if narrow else 0))
    expected = run_batch(EagerExecutor(workload(model), depth=1))
    replays = Replays()
    executor = CapturedExecutor(capturing(model), depth=depth, capture=replays)
    assert executor.implementations()["paged_attention"] == "triton"
    found = run_batch(executor)
    assert {name: each.token_ids for name, each in found.items()} == {
        name: each.token_ids for name, each in expected.items()
    }
    assert not any(each.error for each in found.values())
    assert replays.captured == len(buckets(3))
    assert replays.replayed > 5


@pytest.mark.parametrize(("name", "layers"), [("llama", 1), pytest.param("deepseek3", 2, marks=pytest.mark.slow)])
def test_prompts_beside_decodes(name: str, layers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of prompts and several prompts in a step, decodes beside them, and a prompt that ends with one row."""
    monkeypatch.setattr(captured, "MIXED", (16, 24))
    eager: list[StepPlan] = []
    launch = EagerExecutor._launch

    def noted(self: EagerExecutor, plan: StepPlan) -> Any:
        if isinstance(self, CapturedExecutor):
            eager.append(plan)
        return launch(self, plan)

    monkeypatch.setattr(EagerExecutor, "_launch", noted)
    config: dict[str, Any] = {**TINY[name].config, "num_hidden_layers": layers}
    make(replace(TINY[name], config=config), tmp_path)
    model = load_model(tmp_path)
    replays, found = Replays(), []
    executors: tuple[Any, ...] = (
        EagerExecutor(workload(model), depth=1),
        CapturedExecutor(capturing(model), depth=2, capture=replays),
    )
    for executor in executors:
        capacity = Capacity(16, 16, 4, 6, 24)
        executor.allocate(capacity)
        batcher = Batcher(executor, capacity, BatchLimits(4, 24, 96, prefix_cache=False))
        for number, (length, params) in enumerate(zip((25, 6, 30, 9), (*PARAMS, PARAMS[0]), strict=True)):
            batcher.add(make_request(number, length, 3, sampling=params))
        found.append({name: each.token_ids for name, each in run_all(batcher).items()})
    assert found[0] == found[1]
    assert len(found[0]["s3"]) == 3
    assert replays.captured == len(buckets(4)) + 2
    assert not eager, "a step was not replayed"


def test_windows_in_a_pool_of_their_own(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """One layer sees 20 positions, the other all; blocks behind windows go back while graphs are replayed."""
    monkeypatch.setattr(captured, "tuning", lambda device: replace(tuning(device), narrow=4))
    config = replace(model.config, architecture="mistral", windows=(20, 0))
    windowed = replace(model, config=config)
    limits = BatchLimits(2, 24, 96, window=config.local_window)
    found = []
    captured_too = CapturedExecutor(capturing(windowed), depth=2, capture=Replays())
    executors: tuple[Any, ...] = EagerExecutor(workload(windowed), depth=1), captured_too
    for executor in executors:
        assert executor.separates_windows
        batcher = over(executor, limits, num_blocks=12, block_size=16, local_blocks=7)
        for number, length in enumerate((45, 2)):
            batcher.add(make_request(number, length, 4))
        found.append({name: each.token_ids for name, each in run_all(batcher).items()})
    assert found[0] == found[1]
    assert len(found[0]["s0"]) == 4


def test_rows_that_are_not_finite_are_told_and_hurt_nobody(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured, "MIXED", (24,))

    def run(executor: EagerExecutor, wrong: bool) -> Outcomes:
        capacity = Capacity(12, 16, 2, 6, 24)
        executor.allocate(capacity)
        batcher = Batcher(executor, capacity, BatchLimits(2, 24, 96, prefix_cache=False))
        if wrong:
            batcher.add(replace(make_request(7, 4), prompt_ids=(1, 2, POISON)))
            batcher.add(replace(make_request(8, 4), prompt_ids=(POISON,)))
        batcher.add(make_request(1, 12, 5))
        return run_all(batcher)

    expected = run(EagerExecutor(workload(model), depth=1), False)
    found = run(CapturedExecutor(capturing(poison(model)), depth=2, capture=Replays()), True)
    assert found["s7"].error
    assert found["s8"].error
    assert found["s1"].token_ids == expected["s1"].token_ids


def test_it_refuses_what_it_cannot_capture(model: LoadedModel) -> None:
    assert CapturedExecutor.refuses(capturing(model)) == ""
    assert "captures no graphs" in CapturedExecutor.refuses(workload(model))
    without = replace(workload(model), capabilities=replace(CAPABILITIES, graph_capture=True))
    assert "paged_attention, rope_cache" in CapturedExecutor.refuses(without)
    assert "not of 24" in CapturedExecutor.refuses(capturing(model, block_size=24))


def test_buckets_end_with_the_most_sequences() -> None:
    assert buckets(1) == (1,)
    assert buckets(20) == (1, 2, 4, 8, 16, 20)
    assert buckets(200) == (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 200)
    assert buckets(256)[-4:] == (160, 192, 224, 256)
