"""Which executor the operator's options mean, and what becomes of executors that do not do what they say."""

import gc
import logging
import weakref
from pathlib import Path

import numpy as np
import pytest
from tests.support import odd_executors
from tests.support.numpy_executor import NumpyExecutor
from tests.support.odd_executors import GIB, ODD, RunsOutOfMemory, TellsStories
from tests.support.tiny_models import TinyShape, write_folder

from polyfleet.backends.protocol import KernelCapabilities
from polyfleet.engine.choosing.executors import (
    KNOWN,
    ExecutorKind,
    NoExecutor,
    PassedOver,
    Workload,
    believable,
    candidates,
    find,
    first_that_works,
)
from polyfleet.engine.choosing.sizing import Machine
from polyfleet.engine.executor import Executor, Footprint
from polyfleet.engine.loader import fit, with_room
from polyfleet.executors.eager import EagerExecutor
from polyfleet.executors.persistent import PersistentExecutor
from polyfleet.kernels.cpu import library
from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel
from polyfleet.loading.progress import silent
from polyfleet.models.registry import record
from polyfleet.wire.limits import FieldError
from polyfleet.wire.options import EngineOptions

DTYPES = frozenset({"float32", "bfloat16", "int8"})
ANY = EngineOptions()
NUMPY = "numpy = tests.support.numpy_executor:NumpyExecutor"
CPU = KernelCapabilities(DTYPES, "float32", instruction_sets=("avx2",), executors=("persistent", "eager"))
HIDDEN = TinyShape().hidden
REASONS = {
    "refuses": "it has no head for heights",
    "raises-when-asked": "KeyError: 'heights'",
    "raises-footprint": "OSError: no scales",
    "raises-when-built": "it is Monday",
    "runs-out": "the memory that the runs-out executor measured is not there",
    "raises-in-launch": "RuntimeError: no such kernel",
    "raises-in-draw": "RuntimeError: no dice",
    "gives-nothing": "the gives-nothing executor gave (0,) tokens and (1,) faults for one sequence",
    "gives-lists": "the gives-lists executor gave [0] as tokens, which is no array of integers",
    "draws-numbers": f"the draws-numbers executor drew the token -1 of a vocabulary of {TinyShape().vocabulary}",
    "knows-faults": "the knows-faults executor reported a fault 7 that there is not",
    "shallow": "the shallow executor can't have 0 steps under way",
    "closes-badly": "RuntimeError: no scales",
    "owes": "the owes executor says that its weights take -5 bytes",
    "weighs-words": "the weighs-words executor says that its weights take 'much' bytes",
    "heavier": "kv_cache_tokens: no memory is left on cpu for a KV pool beside the model",
    "tells-stories": "it is tired",
    "ends-all": "SystemExit: no licence",
    "pools-little": f"the pools-little executor pooled float64 [1, 2] where floats [1, {HIDDEN}] are wanted",
    "pools-whole": f"the pools-whole executor pooled int64 [1, 1] where floats [1, {HIDDEN}] are wanted",
    "pools-nothing": f"the pools-nothing executor pooled None where floats [1, {HIDDEN}] are wanted",
    "computes-in-words": "the computes-in-words executor can't compute in 'int7': float32, float16, bfloat16 are known",
    "says-little": "the says-little executor gave 'all of them' as its ops' implementations, which is no mapping",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(write_folder(tmp_path_factory.mktemp("executors") / "model", TinyShape()))


@pytest.fixture
def without_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(library, "PATH", tmp_path / "absent.so")
    library.load.cache_clear()


def odd(kind: type[NumpyExecutor]) -> str:
    """As a backend names it."""
    return f"{kind.name} = tests.support.odd_executors:{kind.__name__}"


def load(
    model: LoadedModel, options: EngineOptions = ANY, executors: tuple[str, ...] = CPU.executors
) -> tuple[Executor, EngineOptions, tuple[PassedOver, ...]]:
    """The executor of a model on a host that has these executors."""
    capabilities = KernelCapabilities(DTYPES, "float32", executors=executors)
    machine = Machine("cpu", DTYPES, "float32", 2**30, cores=2)
    dtype = "float32" if options.dtype == "auto" else options.dtype
    workload = Workload(record(model.config, model.weights), model.weights, options, "cpu", dtype, capabilities)
    names = candidates(options, "cpu", capabilities)
    (executor, resolved), passed = first_that_works(names, lambda kind: fit(kind, workload, model, machine, silent))
    return executor, resolved, passed


def test_auto_is_what_the_device_prefers(model: LoadedModel) -> None:
    library.load.cache_clear()
    if not library.PATH.exists():
        pytest.skip(f"{library.NAME} was not built")
    assert isinstance(load(model)[0], PersistentExecutor)
    assert isinstance(load(model, EngineOptions(executor="eager"))[0], EagerExecutor)


def test_an_executor_says_what_it_computes_in(model: LoadedModel) -> None:
    for dtype in ("float32", "bfloat16"):
        assert load(model, EngineOptions(executor="eager", dtype=dtype))[0].dtype == dtype
        assert load(model, EngineOptions(executor="persistent", dtype=dtype))[0].dtype == "float32"


def test_a_dtype_asked_for_means_eager(model: LoadedModel) -> None:
    executor, resolved, passed = load(model, EngineOptions(dtype="float32", kv_cache_tokens=100))
    assert isinstance(executor, EagerExecutor)
    assert (resolved.kv_cache_tokens, resolved.block_size, passed) == (112, 16, ())


def test_without_library_auto_is_eager_and_says_so(
    model: LoadedModel, without_library: None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        executor, _, passed = load(model)
    assert isinstance(executor, EagerExecutor)
    assert [each.executor for each in passed] == ["persistent"]
    assert "was not built" in passed[0].reason
    assert f"the persistent executor is passed over: {passed[0].reason}" in caplog.text
    with pytest.raises(ValueError, match="was not built"):
        load(model, EngineOptions(executor="persistent"))


def test_a_dtype_asked_for_brings_executors_that_compute_in_it() -> None:
    capturing = KernelCapabilities(DTYPES, "float32", executors=("captured", "persistent", "eager"))
    assert list(candidates(EngineOptions(), "cuda:0", capturing)) == ["captured", "persistent", "eager"]
    assert list(candidates(EngineOptions(dtype="float32"), "cuda:0", capturing)) == ["captured", "eager"]
    assert list(candidates(EngineOptions(dtype="float32"), "cpu", CPU)) == ["eager"]


def test_what_can_not_be_had() -> None:
    with pytest.raises(ValueError, match="no executor 'fast': choose one of auto, captured, eager, persistent"):
        candidates(EngineOptions(executor="fast"), "cpu", CPU)
    card = KernelCapabilities(frozenset({"float32"}), "float32")
    with pytest.raises(ValueError, match="the persistent executor can't run on cuda:0: choose auto or eager"):
        candidates(EngineOptions(executor="persistent"), "cuda:0", card)
    shaders = KernelCapabilities(frozenset({"float32"}), "float32", executors=("vulkan",))
    with pytest.raises(ValueError, match="the eager executor can't run on vulkan: choose auto or vulkan"):
        candidates(EngineOptions(executor="eager"), "vulkan", shaders)


def test_facts_of_the_device_as_words(model: LoadedModel) -> None:
    def facts(capabilities: KernelCapabilities) -> frozenset[str]:
        graph = record(model.config, model.weights)
        return Workload(graph, model.weights, EngineOptions(), "cpu", "float32", capabilities).facts

    assert facts(CPU) == {"avx2"}
    card = KernelCapabilities(frozenset({"float32"}), "float32", graph_capture=True, triton=True)
    assert facts(card) == {"graph_capture", "triton"}


@pytest.mark.parametrize("kind", ODD)
def test_an_executor_that_fails_makes_way_for_the_next_and_its_reason_is_kept(
    model: LoadedModel, kind: type[NumpyExecutor]
) -> None:
    odd_executors.closed.clear()
    executor, resolved, passed = load(model, executors=(odd(kind), NUMPY))
    assert isinstance(executor, NumpyExecutor)
    assert executor.name == "numpy"
    assert passed == (PassedOver(kind.name, REASONS[kind.name]),)
    assert resolved.kv_cache_tokens > 0
    never_built = {"refuses", "raises-when-asked", "raises-footprint", "raises-when-built", "owes"}
    never_built |= {"tells-stories", "ends-all"}
    assert odd_executors.closed == [kind.name] * (kind.name not in never_built)


def test_nothing_holds_an_executor_that_was_passed_over_while_the_next_is_tried(model: LoadedModel) -> None:
    held: list[weakref.ref[Executor]] = []

    def attempt(kind: ExecutorKind) -> str:
        if kind.name == "numpy":
            gc.collect()
            return "alive" if held[0]() is not None else "gone"
        executor = NumpyExecutor(record(model.config, model.weights), model.weights)
        held.append(weakref.ref(executor))
        try:
            raise MemoryError
        except MemoryError:
            raise ValueError("there is no room") from None

    entries = (odd(RunsOutOfMemory), NUMPY)
    names = dict(entry.split(" = ") for entry in entries)
    assert first_that_works(names, attempt) == ("gone", (PassedOver("runs-out", "there is no room"),))


def test_when_all_fail_each_reason_is_said_in_one_sentence(model: LoadedModel) -> None:
    with pytest.raises(NoExecutor) as raised:
        load(model, executors=tuple(map(odd, ODD)))
    assert str(raised.value) == "; ".join(f"{each.name}: {REASONS[each.name]}" for each in ODD)


def test_a_lone_executor_has_one_line_too(model: LoadedModel) -> None:
    with pytest.raises(NoExecutor, match=r"^tells-stories: it is tired$"):
        load(model, executors=(odd(TellsStories),))


@pytest.mark.parametrize("target", ["", "nowhere:Thing", "tests.support.odd_executors:Nothing", "json"])
def test_a_class_that_is_not_there(target: str) -> None:
    with pytest.raises(ValueError, match="the strange executor can't be imported: "):
        find("strange", target)


def test_a_footprint_may_be_of_numpys_integers() -> None:
    assert believable("numpy", Footprint(*np.array((5, 0, 7)))) == Footprint(5, 1, 7)


class Spacious(NumpyExecutor):
    """Takes a MiB for each row of a step."""

    @classmethod
    def footprint(cls, workload: Workload) -> Footprint:
        return Footprint(0, 100, (workload.options.step_tokens or 2048) * 2**20)


def rows_with(model: LoadedModel, gib: float, options: EngineOptions = ANY) -> int:
    """Of a step on an accelerator with so much memory; 0: as many as usual."""
    machine = Machine("cuda:0", DTYPES, "float32", int(gib * GIB), 8)
    workload = Workload(record(model.config, model.weights), model.weights, options, "cuda:0", "float32", CPU)
    return with_room(Spacious, workload, model.config, machine).options.step_tokens


def test_a_step_has_fewer_rows_where_the_usual_number_leaves_no_memory(model: LoadedModel) -> None:
    assert rows_with(model, 2.5) == 0
    assert rows_with(model, 1.9) == 1024
    assert rows_with(model, 1.9, EngineOptions(step_tokens=900)) == 900
    with pytest.raises(FieldError, match="kv_cache_tokens: no memory is left on cuda:0"):
        rows_with(model, 1.9, EngineOptions(step_tokens=2048))
    with pytest.raises(FieldError, match="kv_cache_tokens: no memory is left on cuda:0"):
        rows_with(model, 0.5)
    with pytest.raises(FieldError, match="context_length: must be at most the model's"):
        rows_with(model, 2.5, EngineOptions(context_length=10**6))


def test_every_known_executor_is_there() -> None:
    for name, target in KNOWN.items():
        assert find(name, target).name == name


def test_what_no_executor_can_settle_is_said_as_it_is(model: LoadedModel) -> None:
    with pytest.raises(FieldError, match=r"context_length: must be at most the model's \d+, not 1000000"):
        load(model, EngineOptions(context_length=1_000_000))
