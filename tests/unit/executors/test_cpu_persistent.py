"""PersistentExecutor's choices and refusals: threads, instruction sets, models it can't run, a missing library."""

import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.support.cpu_graphs import (
    FusedBuilder,
    Params,
    available_sets,
    by_name,
    dense,
    needs_library,
    random_weight,
)
from tests.support.stepping import Driver
from tests.support.tiny_models import TinyShape, write_folder

from polyfleet.engine.executor import Capacity, StepTooLarge
from polyfleet.executors.persistent import PersistentExecutor, choose_instruction_set, choose_threads
from polyfleet.kernels import cpu
from polyfleet.kernels.cpu import library
from polyfleet.kernels.cpu.footprint import kv_bytes, weight_bytes
from polyfleet.kernels.weights.weight import Weight, WeightFormat
from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel
from polyfleet.models.registry import record

CAPACITY = Capacity(num_blocks=4, block_size=16, max_sequences=4, max_blocks=4, step_tokens=64)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(write_folder(tmp_path_factory.mktemp("persistent") / "model", TinyShape()))


def executor(model: LoadedModel, **options: object) -> PersistentExecutor:
    return PersistentExecutor(record(model.config, model.weights), model.weights, **options)  # type: ignore[arg-type]


def with_weight(model: LoadedModel, weight: Weight) -> LoadedModel:
    return replace(model, weights={**model.weights, weight.name: weight})


def limited_root(tmp_path: Path, quota: str) -> Path:
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text(quota)
    return tmp_path


def test_threads_are_all_cores_by_default() -> None:
    assert choose_threads(0) >= 1
    assert choose_threads(1) == 1


def test_more_threads_than_cores_are_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    cores = choose_threads(0)
    with caplog.at_level(logging.WARNING):
        assert choose_threads(cores + 30) == cores
    assert f"{cores + 30} threads were asked for, {cores} cores may be used" in caplog.text


def test_threads_follow_the_cgroup(tmp_path: Path) -> None:
    root = limited_root(tmp_path, "50000 100000\n")
    assert choose_threads(0, root) == 1
    assert choose_threads(8, root) == 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity masks")
def test_threads_follow_the_affinity_mask() -> None:
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    code += "from polyfleet.executors.persistent import choose_threads; print(choose_threads(0))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


@needs_library
def test_the_best_instruction_set_is_chosen_and_others_can_be() -> None:
    assert available_sets()[-1] == "plain"
    assert choose_instruction_set("auto") == available_sets()[0]
    assert choose_instruction_set("plain") == "plain"


@needs_library
def test_an_instruction_set_that_the_processor_lacks(model: LoadedModel) -> None:
    with pytest.raises(ValueError, match=r"does not run 'avx1024': choose auto or one of .*plain"):
        executor(model, instruction_set="avx1024")


@needs_library
def test_a_processor_with_nothing_but_the_baseline(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where detection finds no AVX2, plain C++ runs."""
    monkeypatch.setattr("polyfleet.executors.persistent.instruction_sets", lambda: ("plain",))
    chosen = executor(model)
    assert chosen.instruction_set == "plain"
    assert set(chosen.implementations().values()) == {"cpu plain", "cpu F32: plain float32"}
    with pytest.raises(ValueError, match="does not run 'avx2': choose auto or one of plain"):
        choose_instruction_set("avx2")


@needs_library
@pytest.mark.parametrize("field", ["num_blocks", "block_size", "step_tokens"])
@pytest.mark.parametrize("value", [0, -5, 2**32])
def test_capacities_that_no_engine_has(model: LoadedModel, field: str, value: int) -> None:
    with pytest.raises(ValueError, match=rf"{field} must be 1 to 2147483647, not {value}"):
        executor(model).allocate(replace(CAPACITY, **{field: value}))


@needs_library
def test_a_number_of_threads_that_no_engine_has(model: LoadedModel) -> None:
    with pytest.raises(ValueError, match=r"threads must be 0 to 2147483647, not -1"):
        executor(model, threads=-1)


@needs_library
@pytest.mark.parametrize("block_size", [16, 2**31 - 1])
def test_a_cache_that_no_memory_holds(model: LoadedModel, block_size: int) -> None:
    chosen = executor(model)
    with pytest.raises(MemoryError):
        chosen.allocate(replace(CAPACITY, num_blocks=2**31 - 1, block_size=block_size))
    driver = Driver(chosen, 4)
    assert len(driver.generate(driver.begin([1, 2], room=4), 3)) == 3


@needs_library
def test_a_step_of_more_rows_than_there_is_room_for(model: LoadedModel) -> None:
    driver = Driver(executor(model), 4, step_tokens=20)
    run = driver.begin(range(21))
    with pytest.raises(StepTooLarge, match="a step of 21 rows; there is room for 20"):
        driver.launch([(run, 21)])
    driver.step([(run, 20)])
    assert run.results[-1].token is not None


@needs_library
@pytest.mark.parametrize("form", list(WeightFormat))
def test_measured_and_estimated_weights(form: WeightFormat) -> None:
    """A table that is packed for a linear, and kept beside it for the embedding."""
    weights = by_name(random_weight("table", form, 48, 512), dense("n", np.ones(512, dtype=np.float32)))
    graph = FusedBuilder(Params(), {"table": 48}, {"table": 512})
    x = graph.norm(graph.embedding("table"), "n")
    recorded = graph.finish(x, graph.linear(x, "table"))
    found = PersistentExecutor(recorded, weights).measure()
    assert weight_bytes(recorded, weights) <= found.weights < 1.01 * weight_bytes(recorded, weights) + 100


@needs_library
def test_measured_bytes_of_the_cache_and_of_steps(model: LoadedModel) -> None:
    """Two layers of two heads of 16, in half precision; blocks of less than 16 tokens are padded."""
    graph = record(model.config, model.weights)
    assert kv_bytes(graph, 16) == sum(2 * 2 * each.heads * each.width for each in graph.caches)
    assert kv_bytes(graph, 4) == kv_bytes(graph, 16) * 5 // 2
    small, large = (executor(model, step_tokens=rows).measure() for rows in (16, 64))
    assert small.kv_per_token == kv_bytes(graph, 16)
    assert 0 < 4 * small.workspace == large.workspace


@needs_library
@pytest.mark.parametrize("form", [WeightFormat.F32, WeightFormat.Q8_0])
def test_weights_that_are_not_finite(model: LoadedModel, form: WeightFormat) -> None:
    source = model.weights["layers.1.up"]
    data = source.data.clone()
    if form.quantised:
        data = torch.zeros(source.rows, source.columns // 32 * 34, dtype=torch.uint8)
        data[3, :2] = torch.from_numpy(np.array([np.inf], dtype=np.float16).view(np.uint8))
    else:
        data[3, 5] = float("nan")
    broken = with_weight(model, Weight(source.name, form, source.rows, source.columns, data))
    with pytest.raises(ValueError, match=r"weight layers\.1\.up holds numbers that are not finite"):
        executor(broken)


@needs_library
def test_a_quantised_weight_whose_columns_do_not_fit(model: LoadedModel) -> None:
    source = model.weights["layers.0.down"]
    odd = Weight(source.name, WeightFormat.Q8_0, source.rows, 40, torch.zeros(source.rows, 34, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"weight layers\.0\.down has 40 columns, no multiple of 32"):
        executor(with_weight(model, odd))


@needs_library
def test_implementations_name_every_op(model: LoadedModel) -> None:
    chosen = executor(model, instruction_set="plain").implementations()
    assert len(chosen) == 8
    assert chosen["linear"] == "cpu F32: plain float32"
    assert chosen["paged_attention"] == "cpu plain"


def test_a_library_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(library, "PATH", tmp_path / library.NAME)
    library.load.cache_clear()
    try:
        with pytest.raises(library.LibraryUnavailable, match="was not built: install a C\\+\\+ compiler"):
            library.load()
        assert cpu.describe() == {
            "available": False,
            "reason": f"{library.NAME} was not built: install a C++ compiler and install polyfleet again",
        }
        (tmp_path / library.NAME).write_bytes(b"not a library")
        with pytest.raises(library.LibraryUnavailable, match="can't be loaded"):
            library.load()
    finally:
        library.load.cache_clear()


@needs_library
@pytest.mark.parametrize("found", [0, 1], ids=["without a number", "of another number"])
def test_a_library_of_another_version(monkeypatch: pytest.MonkeyPatch, found: int) -> None:
    built = SimpleNamespace(pf_abi=lambda: found) if found else SimpleNamespace()
    monkeypatch.setattr(library, "ABI", 2)
    monkeypatch.setattr("ctypes.CDLL", lambda path: built)
    library.load.cache_clear()
    try:
        reason = f"{library.PATH} was built for another version (ABI {found}, not 2): install polyfleet again"
        assert cpu.describe() == {"available": False, "reason": reason}
    finally:
        library.load.cache_clear()


@needs_library
def test_describe_tells_sets_and_implementations() -> None:
    facts = cpu.describe()
    assert facts["available"] is True
    assert facts["instruction_sets"] == list(available_sets())
    assert facts["instruction_set"] == available_sets()[0]
    implementations = facts["implementations"]
    assert isinstance(implementations, dict)
    assert set(implementations) >= {"linear", "paged_attention", "rms_norm"}
    assert all(form.value in implementations["linear"] for form in WeightFormat)
