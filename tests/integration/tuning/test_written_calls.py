"""Calls of scripts that were written for one machine's backends run as they stand there, under Polyfleet's names."""

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from tests.support.tiny_models import TinyShape, write_gguf

from polyfleet import backends
from polyfleet.backends import BackendOptimizer, BackendType, BackendUnavailable
from polyfleet.cli.main import cli
from polyfleet.engine import Engine, EngineOptions, PersistentKernel, new_kernel_graph
from polyfleet.gateway.command import main as gateway
from polyfleet.scheduler.command import main as scheduler
from polyfleet.serving.command import main as worker


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Somebody who has chosen nothing yet, in a folder of their own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("POLYFLEET_BACKEND", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_gguf(path, TinyShape())
    return str(path)


def polyfleet(*words: str) -> str:
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_backends_are_listed_chosen_and_asked() -> None:
    assert "cpu" in [backend.value for backend in backends.get_available_backends()]
    backends.set_backend("auto")
    backends.set_backend("cpu")
    assert backends.get_backend().value == "cpu"
    assert backends.get_memory_info(backends.get_backend().value).total_bytes > 0
    with pytest.raises(BackendUnavailable, match="backend ascend is not available: "):
        backends.set_backend("ascend")
    assert backends.get_backend().value == "cpu"


def test_the_configuration_spreads_into_what_takes_one(model: str) -> None:
    config = backends.auto_configure_backend()
    backends.set_backend(config["backend"])
    options = EngineOptions(**config)
    assert (options.device, options.max_sequences) == (config["backend"], config["max_sequences"])
    assert Engine.load(model, EngineOptions(**{**config, "kv_cache_tokens": 64})).facts.executor
    with PersistentKernel(model, **config, max_seq_length=48) as kernel:
        assert len(kernel.generate((3, 4), max_tokens=4)) <= 4


def test_the_optimiser_prints_saves_and_loads(capsys: pytest.CaptureFixture[str]) -> None:
    optimizer = BackendOptimizer()
    optimizer.print_system_info()
    assert "* " in capsys.readouterr().out
    optimizer.save_config("optimal_config.json", backend="cpu")
    config = optimizer.load_config("optimal_config.json")
    assert config["backend"] == "cpu"
    assert config == json.loads(Path("optimal_config.json").read_text())


def test_a_kernel_graph_of_a_backend_is_recorded_and_run() -> None:
    graph = new_kernel_graph(backend="cpu")
    graph.output("y", graph.relu(graph.input("x", 3)))
    assert graph.run({"x": np.array([[-1.0, 0.0, 2.0]])})["y"].tolist() == [[0.0, 0.0, 2.0]]
    graph.close()


def test_a_persistent_kernel_takes_its_keywords(model: str) -> None:
    step, tokens = np.array([1], np.int32), np.zeros((1, 24), np.int64)
    tokens[0, :2] = 3, 4
    kernel = PersistentKernel(
        model,
        world_size=1,
        mpi_rank=0,
        num_workers=8,
        num_local_schedulers=4,
        num_remote_schedulers=0,
        max_seq_length=24,
        eos_token_id=2,
        meta_tensors=[step, tokens],
        profiler_tensor=None,
        spec_decode_config=None,
        backend="cpu",
    )
    kernel()
    assert step[0] > 1
    kernel.close()


def test_a_quick_benchmark_gives_results_by_backend() -> None:
    results: Any = backends.benchmark_backends(duration_seconds=0.1, backends=["cpu"])
    assert results["backends"]["cpu"]["rows"][0]["median_ms"] > 0


def test_a_simple_decoder_runs_on_the_best_device() -> None:
    backends.set_backend("auto")
    device = backends.get_best_device()
    with torch.no_grad():
        x = torch.randn(1, 128, 768, device=device)
        hidden = torch.relu(torch.matmul(torch.layer_norm(x, (768,)), torch.randn(768, 768, device=device)))
        assert torch.matmul(hidden, torch.randn(768, 32000, device=device)).shape == (1, 128, 32000)


def test_backends_are_compared_by_an_operation() -> None:
    def benchmark_operation(backend: str, name: str, operation: Callable[..., Any], *args: Any) -> float:
        backends.set_backend(backend)
        for _ in range(5):
            operation(*args)
        began = time.perf_counter()
        for _ in range(10):
            operation(*args)
        return (time.perf_counter() - began) / 10 * 1e3

    results = {}
    one = torch.ones(64, 64)
    for backend in ("cuda", "cpu", "mps"):
        with contextlib.suppress(BackendUnavailable):
            results[backend] = benchmark_operation(backend, "matmul", torch.matmul, one, one)
    assert "cpu" in results


def test_the_manager_informs_optimises_sets_and_tests() -> None:
    assert "cpu" in polyfleet("backends", "info")
    assert "max_sequences" in polyfleet("backends", "optimize", "--backend", "cpu", "--apply")
    polyfleet("backends", "optimize", "--backend", "auto")
    polyfleet("backends", "optimize", "--apply")
    polyfleet("backends", "optimize", "--template", "development", "--apply")
    polyfleet("backends", "set", "cpu")
    assert backends.get_backend().value == "cpu"


def test_the_benchmark_takes_lists_with_spaces() -> None:
    sizes = ["--batch-sizes", "1", "4", "8", "--seq-lengths", "8", "16", "--hidden-sizes", "64", "128"]
    words = ["--backend", "all", "--duration", "30", "--iterations", "1", *sizes, "--dtype", "float16"]
    polyfleet("backends", "benchmark", *words, "--output", "results.json")
    results = json.loads(Path("results.json").read_text())
    assert results["options"]["batch_sizes"] == [1, 4, 8]
    assert results["options"]["seq_lengths"] == [8, 16]
    assert results["options"]["hidden_sizes"] == [64, 128]
    assert len(results["backends"]["cpu"]["rows"]) == 3 * 2 * 2 * 4


def test_the_environment_chooses_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cpu", "auto"):
        monkeypatch.setenv("POLYFLEET_BACKEND", name)
        assert backends.get_backend().value in [backend.value for backend in backends.get_available_backends()]
    monkeypatch.setenv("POLYFLEET_BACKEND", "ascend")
    with pytest.raises(BackendUnavailable, match="POLYFLEET_BACKEND"):
        backends.get_backend()


@pytest.mark.parametrize("process", [gateway, scheduler, worker], ids=["gateway", "scheduler", "worker"])
def test_the_environment_chooses_the_log_level(process: click.Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYFLEET_LOG_LEVEL", "DEBUG")
    assert process.make_context("process", []).params["log_level"] == "debug"
    assert process.make_context("process", ["--log-level", "error"]).params["log_level"] == "error"
    monkeypatch.setenv("POLYFLEET_LOG_LEVEL", "loud")
    with pytest.raises(click.BadParameter, match="'loud' is not one of"):
        process.make_context("process", [])


def test_members_of_the_enumeration_do_for_names() -> None:
    assert backends.set_backend(BackendType.CPU).value == "cpu"
    assert EngineOptions(backend=BackendType.CPU) == EngineOptions(device="cpu")
    assert type(EngineOptions(backend=BackendType.CPU).device) is str
    assert EngineOptions(backend="cuda", device="cuda:1").device == "cuda:1"
    with pytest.raises(ValueError, match=r"backend: \(cuda\) and device \(cpu\) mean the same: give one of them"):
        EngineOptions(backend="cuda", device="cpu")
