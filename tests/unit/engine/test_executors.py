"""Which executor and dtype the operator's options mean."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.support.tiny_models import TinyShape, write_folder

from polyfleet.backends.protocol import KernelCapabilities
from polyfleet.engine.batch import Executor
from polyfleet.engine.eager import EagerExecutor
from polyfleet.engine.executors import (
    EXECUTORS,
    ExecutorKind,
    Wanted,
    build_executor,
    computing_dtype,
    first_that_works,
    kernel_facts,
)
from polyfleet.engine.persistent import PersistentKernel
from polyfleet.engine.request import EngineOptions
from polyfleet.kernels.cpu import library
from polyfleet.kernels.cpu.footprint import packed_bytes
from polyfleet.kernels.weights import Weight, WeightFormat
from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel
from polyfleet.wire.limits import FieldError

CPU = KernelCapabilities(
    frozenset({"float32", "bfloat16", "int8"}),
    "float32",
    instruction_sets=("avx2",),
    executors=("persistent", "eager"),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(write_folder(tmp_path_factory.mktemp("executors") / "model", TinyShape()))


@pytest.fixture
def without_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(library, "PATH", tmp_path / "absent.so")
    library.load.cache_clear()


def test_auto_is_what_the_device_prefers() -> None:
    assert computing_dtype(EngineOptions(), CPU) is torch.float32
    wide = KernelCapabilities(frozenset({"float32", "bfloat16"}), "bfloat16")
    assert computing_dtype(EngineOptions(), wide) is torch.bfloat16
    assert computing_dtype(EngineOptions(dtype="bfloat16"), CPU) is torch.bfloat16


@pytest.mark.parametrize("dtype", ["float16", "int8", "float8"])
def test_dtypes_that_can_not_be_used(dtype: str) -> None:
    with pytest.raises(ValueError, match="choose auto or one of bfloat16, float32"):
        computing_dtype(EngineOptions(dtype=dtype), CPU)


def test_a_dtype_asked_for_means_eager(model: LoadedModel) -> None:
    executor = build_executor(model, EngineOptions(dtype="float32"), "cpu", 3, CPU)
    assert isinstance(executor, EagerExecutor)
    assert (executor.num_blocks, executor.block_size) == (3, 16)


def test_without_library_auto_is_eager_and_says_so(
    model: LoadedModel, without_library: None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert isinstance(build_executor(model, EngineOptions(), "cpu", 3, CPU), EagerExecutor)
    assert "the eager executor is used" in caplog.text
    with pytest.raises(ValueError, match="was not built"):
        build_executor(model, EngineOptions(executor="persistent"), "cpu", 3, CPU)


def test_with_library_auto_is_persistent(model: LoadedModel) -> None:
    library.load.cache_clear()
    if not library.PATH.exists():
        pytest.skip(f"{library.NAME} was not built")
    assert isinstance(build_executor(model, EngineOptions(), "cpu", 3, CPU), PersistentKernel)
    assert isinstance(build_executor(model, EngineOptions(executor="eager"), "cpu", 3, CPU), EagerExecutor)


def test_what_can_not_be_had(model: LoadedModel) -> None:
    with pytest.raises(ValueError, match="there is no executor 'fast': choose one of auto, eager, persistent"):
        build_executor(model, EngineOptions(executor="fast"), "cpu", 3, CPU)
    card = KernelCapabilities(frozenset({"float32"}), "float32")
    with pytest.raises(ValueError, match="the persistent executor can't run on cuda:0: choose auto or eager"):
        build_executor(model, EngineOptions(executor="persistent"), "cuda:0", 3, card)
    shaders = KernelCapabilities(frozenset({"float32"}), "float32", executors=("vulkan",))
    with pytest.raises(ValueError, match="the eager executor can't run on vulkan: choose auto or vulkan"):
        build_executor(model, EngineOptions(executor="eager"), "vulkan", 3, shaders)
    with pytest.raises(ValueError, match="dtype 'float16' can't be used on this device: choose auto or one of float32"):
        build_executor(model, EngineOptions(dtype="float16"), "vulkan", 3, shaders)


def test_facts_of_the_device_as_words() -> None:
    assert kernel_facts(CPU) == {"avx2"}
    card = KernelCapabilities(frozenset({"float32"}), "float32", graph_capture=True, triton=True)
    assert kernel_facts(card) == {"graph_capture", "triton"}


def test_an_executor_that_fails_to_build_makes_way_for_the_next(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(wanted: Wanted) -> Executor:
        raise ValueError("it is Monday")

    monkeypatch.setitem(EXECUTORS, "persistent", replace(EXECUTORS["persistent"], build=fails))
    assert isinstance(build_executor(model, EngineOptions(), "cpu", 3, CPU), EagerExecutor)
    assert "the eager executor is used, which is slower: it is Monday" in caplog.text


def test_what_the_operator_asked_for_is_not_settled_by_another_executor(model: LoadedModel) -> None:
    def attempt(kind: ExecutorKind) -> None:
        raise FieldError("kv_cache_tokens", "is too large")

    with pytest.raises(FieldError, match="kv_cache_tokens: is too large"):
        first_that_works(("eager", "vulkan"), model, attempt)


@pytest.mark.parametrize("form", [WeightFormat.F32, WeightFormat.F16, WeightFormat.Q4_1, WeightFormat.Q8_0])
def test_packed_weights_take_what_their_format_does(form: WeightFormat) -> None:
    """4 bits a weight and two half-precision numbers for 32 of them; rows are padded to 16."""
    weight = Weight("w", form, 1000, 4096, torch.empty(0))
    per_weight = {"F32": 4.0, "F16": 2.0, "Q4_1": 0.625, "Q8_0": 1.0625}[form.value]
    assert packed_bytes(weight) == 1008 * 4096 * per_weight
