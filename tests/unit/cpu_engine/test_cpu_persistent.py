"""PersistentKernel's choices and refusals: threads, instruction sets, models it can't run, a missing library."""

import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.cpu_graphs import available_sets, needs_library
from tests.support.tiny_models import TinyShape, write_folder

from polyfleet.engine.batch import PoolingKind, SequenceSlice, StepBatch
from polyfleet.engine.persistent import PersistentKernel, choose_instruction_set, choose_threads, pool, step_rows
from polyfleet.kernels import cpu
from polyfleet.kernels.cpu import library
from polyfleet.kernels.cpu.engine import StepRows
from polyfleet.kernels.weights import Weight, WeightFormat
from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel
from polyfleet.models.registry import record


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(write_folder(tmp_path_factory.mktemp("persistent") / "model", TinyShape()))


def kernel(model: LoadedModel, **options: object) -> PersistentKernel:
    graph = record(model.config, model.weights)
    sizes = {"num_blocks": 4, **options}
    return PersistentKernel(graph, weights=model.weights, **sizes)  # type: ignore[arg-type]


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
    code += "from polyfleet.engine.persistent import choose_threads; print(choose_threads(0))"
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
        kernel(model, instruction_set="avx1024")


@needs_library
def test_a_processor_with_nothing_but_the_baseline(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where detection finds no AVX2, plain C++ runs."""
    monkeypatch.setattr("polyfleet.engine.persistent.instruction_sets", lambda: ("plain",))
    chosen = kernel(model)
    assert chosen.instruction_set == "plain"
    assert set(chosen.implementations().values()) == {"cpu plain", "cpu F32: plain float32"}
    with pytest.raises(ValueError, match="does not run 'avx2': choose auto or one of plain"):
        choose_instruction_set("avx2")


@needs_library
def test_a_backend_without_persistent_kernel(model: LoadedModel) -> None:
    with pytest.raises(ValueError, match="no persistent kernel for 'mps': choose one of cpu"):
        PersistentKernel(record(model.config, model.weights), "mps", weights=model.weights, num_blocks=1)


@pytest.mark.parametrize(
    ("option", "value"),
    [("threads", -1), ("num_blocks", 0), ("num_blocks", -5), ("num_blocks", 2**32), ("block_size", 0)],
)
def test_sizes_that_no_engine_has(model: LoadedModel, option: str, value: int) -> None:
    with pytest.raises(ValueError, match=rf"{option} must be [01] to 2147483647, not {value}"):
        kernel(model, **{option: value})


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
        kernel(broken)


@needs_library
def test_a_quantised_weight_whose_columns_do_not_fit(model: LoadedModel) -> None:
    source = model.weights["layers.0.down"]
    odd = Weight(source.name, WeightFormat.Q8_0, source.rows, 40, torch.zeros(source.rows, 34, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"weight layers\.0\.down has 40 columns, no multiple of 32"):
        kernel(with_weight(model, odd))


@needs_library
def test_an_unknown_format(model: LoadedModel) -> None:
    source = model.weights["layers.0.down"]
    odd = Weight(source.name, "IQ2_XXS", source.rows, source.columns, source.data)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"weight layers\.0\.down has a format that the CPU engine does not read"):
        kernel(with_weight(model, odd))


@needs_library
def test_implementations_name_every_op(model: LoadedModel) -> None:
    chosen = kernel(model, instruction_set="plain").implementations()
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
def test_describe_tells_sets_and_implementations() -> None:
    facts = cpu.describe()
    assert facts["available"] is True
    assert facts["instruction_sets"] == list(available_sets())
    assert facts["instruction_set"] == available_sets()[0]
    implementations = facts["implementations"]
    assert isinstance(implementations, dict)
    assert set(implementations) >= {"linear", "paged_attention", "rms_norm"}
    assert all(form.value in implementations["linear"] for form in WeightFormat)


@needs_library
@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (SequenceSlice([96], 0, [0]), "token ids must be 0 to 95"),
        (SequenceSlice([-1], 0, [0]), "token ids must be 0 to 95"),
        (SequenceSlice([2**40], 0, [0]), "token ids must be 0 to 95"),
        (SequenceSlice([1], 0, [4]), "block tables must name blocks 0 to 3"),
        (SequenceSlice([1], 0, [-1]), "block tables must name blocks 0 to 3"),
        (SequenceSlice([1] * 17, 0, [0]), "a block for each of its positions"),
        (SequenceSlice([1], 16, [0]), "a block for each of its positions"),
        (SequenceSlice([1], -1, [0]), "a start of 0 or more"),
        (SequenceSlice([], 0, [0]), "a slice must have tokens"),
    ],
)
def test_a_step_never_leaves_the_engines_memory(model: LoadedModel, bad: SequenceSlice, sentence: str) -> None:
    good = SequenceSlice([1], 0, [1], pooling=PoolingKind.LAST)
    chosen = kernel(model)
    (expected,) = chosen.step(StepBatch((good,)))
    for slices in ((bad,), (good, bad), (bad, good)):
        with pytest.raises(ValueError, match=sentence):
            chosen.step(StepBatch(slices))
    assert chosen.step(StepBatch((good,))) == (expected,)


@needs_library
def test_a_closed_kernel_says_so(model: LoadedModel) -> None:
    chosen = kernel(model)
    chosen.close()
    chosen.close()
    with pytest.raises(ValueError, match="this engine is closed"):
        chosen.step(StepBatch((SequenceSlice([1], 0, [0]),)))


def test_tables_are_cut_to_what_is_read() -> None:
    batch = StepBatch(
        (
            SequenceSlice([7], 5, [3, 9, 1, 8]),
            SequenceSlice([1, 2, 3], 3, [4, 0, 8], pooling=PoolingKind.LAST),
        )
    )
    rows = step_rows(batch, 4)
    assert rows == StepRows([7, 1, 2, 3], [0, 1, 4], [5, 3], [0, 2], [3, 9, 4, 0], [])


def test_pooling() -> None:
    rows = np.array([[1, 2], [3, -5]], dtype=np.float32)
    assert pool(rows, PoolingKind.MEAN) == (4.0, -3.0)
    assert pool(rows, PoolingKind.LAST) == (3.0, -5.0)
    rows[0, 0] = np.nan
    assert pool(rows, PoolingKind.MEAN) is None
    assert pool(rows, PoolingKind.LAST) == (3.0, -5.0)
