"""Keys and values held in 8 bits: how many bytes, how near the numbers, and where that can't be."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.eager_models import SHAPE, tiny_model, workload
from tests.support.stepping import Driver

from polyfleet.engine import Engine
from polyfleet.engine.choosing.executors import KNOWN, Workload, find, refuse
from polyfleet.engine.executor import Executor, Footprint
from polyfleet.executors.eager import EagerExecutor
from polyfleet.executors.persistent import PersistentExecutor
from polyfleet.kernels.cached import BYTES, MOST, loaded, stored
from polyfleet.loading.model import LoadedModel
from polyfleet.loading.progress import Progress
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import SequenceRequest

TOLERANCE, MEAN_TOLERANCE = 1.0, 0.2  # of log probabilities of a tiny model with random weights


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return tiny_model(tmp_path_factory.mktemp("bytes") / "model")


def test_numbers_are_rounded_and_cut_off() -> None:
    numbers = torch.tensor([0.0, 1.0, -1.06, 17.0, 1e6, -1e6, 2**-9, float("nan")])
    held = loaded(stored(numbers, torch.empty(0, dtype=BYTES)), torch.float32)
    assert held[:7].tolist() == [0.0, 1.0, -1.0, 16.0, MOST, -MOST, 2**-9]
    assert held[7].isnan()
    assert stored(numbers, numbers) is numbers


def test_a_token_takes_a_byte_for_each_number(model: LoadedModel) -> None:
    numbers = 2 * SHAPE.layers * SHAPE.kv_heads * SHAPE.head_dim
    heads = numbers // SHAPE.head_dim
    tasks = [workload(model, kv_dtype=each) for each in ("auto", "fp8", "int8")]
    assert [EagerExecutor.footprint(each).kv_per_token for each in tasks] == [4 * numbers, numbers, numbers + 2 * heads]
    found = [PersistentExecutor.footprint(each).kv_per_token for each in tasks]
    assert found == [2 * numbers, 2 * numbers, numbers + 2 * heads]


def test_blocks_travel_in_the_computing_dtype(model: LoadedModel) -> None:
    """What is exported is what is held, and comes to the same bytes again; a cache that is wider takes it as well."""
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    first = Driver(EagerExecutor(workload(model, kv_dtype="fp8")), 8, 4)
    run = first.begin(prompt, room=4, blocks=[5, 2, 7])
    wanted = first.generate(run, 4)
    exported = first.executor.export_blocks([5, 2])
    assert {each.dtype for each in exported} == {np.dtype(np.float32)}
    for kind in ("fp8", "auto"):
        other = Driver(EagerExecutor(workload(model, kv_dtype=kind)), 8, 4)
        other.executor.import_blocks([5, 2], exported)
        again = other.executor.export_blocks([5, 2])
        assert all(np.array_equal(mine, theirs) for mine, theirs in zip(again, exported, strict=True))
    assert len(wanted) == 4


def test_devices_that_know_no_such_numbers(model: LoadedModel) -> None:
    task = replace(workload(model, kv_dtype="fp8"), device="cuda:0")
    assert EagerExecutor.refuses(task) == "cuda:0 knows no float8_e4m3fn, which kv_dtype fp8 needs"
    for kind, dtypes, reason in (
        ("int8", {"float32"}, "cuda:0 knows no bfloat16, which kv_dtype int8 needs"),
        ("int8", {"float32", "bfloat16"}, ""),
    ):
        able = replace(task.capabilities, dtypes=frozenset(dtypes))
        assert (
            EagerExecutor.refuses(replace(workload(model, kv_dtype=kind), device="cuda:0", capabilities=able)) == reason
        )
    able = replace(task.capabilities, dtypes=frozenset({"float32", "float8_e4m3fn"}))
    assert EagerExecutor.refuses(replace(task, capabilities=able)) == ""


@pytest.mark.parametrize("executor", ["captured", "vulkan"])
def test_executors_that_keep_no_codes(model: LoadedModel, executor: str) -> None:
    with pytest.raises(ValueError, match=r"it keeps no keys and values in int8 \(kv_dtype\)$"):
        refuse(Able(executor), workload(model, kv_dtype="int8"))


class Able:
    """A kind of executor that would take anything, with what a real one says of its caches."""

    def __init__(self, name: str) -> None:
        self.name = name
        if found := getattr(find(name, KNOWN[name]), "kv_dtypes", None):
            self.kv_dtypes = found

    def refuses(self, workload: Workload) -> str:
        return ""

    def footprint(self, workload: Workload) -> Footprint:
        raise NotImplementedError

    def build(self, workload: Workload, progress: Progress) -> Executor:
        raise NotImplementedError


def test_an_engine(tmp_path: Path) -> None:
    """Log probabilities stay near; the CPU's own executor says that it can't, and the next one is taken."""
    tiny_model(tmp_path / "model")
    sizes: dict[str, Any] = {"device": "cpu", "context_length": 64, "max_sequences": 2, "threads": 1}
    found = []
    for kind in ("auto", "fp8"):
        engine = Engine.load(str(tmp_path / "model"), EngineOptions(executor="eager", kv_dtype=kind, **sizes))
        engine.add(SequenceRequest("s", tuple(range(3, 40)), max_tokens=1, prompt_logprobs=0))
        scores = [token for update in _all(engine) for token in update.prompt_logprobs]
        found.append([each.logprob for each in scores])
        engine.close()
    assert found[0] != found[1]
    distances = np.abs(np.subtract(found[0], found[1]))
    assert distances.mean() < MEAN_TOLERANCE
    assert distances.max() < TOLERANCE
    with pytest.raises(ValueError, match=r"it keeps no keys and values in fp8 \(kv_dtype\)$"):
        Engine.load(str(tmp_path / "model"), EngineOptions(executor="persistent", kv_dtype="fp8", **sizes))
    engine = Engine.load(str(tmp_path / "model"), EngineOptions(kv_dtype="int8", **sizes))
    assert (engine.facts.executor, engine.facts.passed_over) == ("persistent", ())
    engine.close()
    engine = Engine.load(str(tmp_path / "model"), EngineOptions(kv_dtype="fp8", **sizes))
    assert engine.facts.executor == "eager"
    assert engine.facts.passed_over == ("persistent: it keeps no keys and values in fp8 (kv_dtype)",)
    engine.close()


def _all(engine: Engine) -> list[Any]:
    updates: list[Any] = []
    while engine.has_work:
        updates += engine.step()
    return updates
