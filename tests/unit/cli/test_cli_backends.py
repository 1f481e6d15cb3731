"""`polyfleet backends`, `conformance` and `config save | load | show`: what users type, read and get refused."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from polyfleet.backends import BackendOptimizer, get_backend
from polyfleet.backends.templates import TEMPLATES
from polyfleet.cli.main import cli


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("POLYFLEET_BACKEND", raising=False)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def test_info_names_every_backend_with_its_reason() -> None:
    facts = json.loads(run("backends", "info", "--json").stdout)
    assert list(facts["backends"]) == [
        *("cuda", "rocm", "hygon", "ascend", "cambricon", "xpu", "mps", "cpu", "vulkan"),
    ]
    assert facts["backends"]["cpu"]["devices"][0]["total_memory_bytes"] > 0
    for name, backend in facts["backends"].items():
        assert backend["available"] or backend["reason"], name
    assert "chosen by auto" in run("backends", "info").stdout


def test_set_persists_and_reset_undoes() -> None:
    assert run("backends", "set", "cpu").exit_code == 0
    assert json.loads(run("config", "show", "--json").stdout) == {"backend": "cpu"}
    assert run("backends", "reset").exit_code == 0
    assert json.loads(run("config", "show", "--json").stdout) == {}


def test_unknown_and_absent_backends_are_refused_in_a_sentence() -> None:
    unknown = run("backends", "set", "tpu")
    assert unknown.exit_code == 3
    assert "There is no backend 'tpu': choose auto or one of cuda, rocm" in unknown.stderr
    absent = run("backends", "set", "ascend")
    assert absent.exit_code == 3
    assert "Backend ascend is not available: no Huawei Ascend device is present" in absent.stderr


def test_the_environment_variable_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    run("backends", "set", "auto")
    monkeypatch.setenv("POLYFLEET_BACKEND", "cpu")
    assert get_backend().type == "cpu"
    monkeypatch.setenv("POLYFLEET_BACKEND", "tpu")
    refused = run("backends", "list")
    assert refused.exit_code == 2
    assert "There is no backend 'tpu'" in refused.stderr


def test_optimize_applies_saves_and_loads(tmp_path: Path) -> None:
    saved = tmp_path / "optimal.json"
    done = run("backends", "optimize", "--template", "latency", "--apply", "--output", str(saved), "--json")
    config = json.loads(done.stdout)
    assert config["max_sequences"] == 4
    assert json.loads(saved.read_text()) == config
    assert json.loads(run("config", "show", "--json").stdout) == config
    run("backends", "reset")
    assert run("config", "load", str(saved)).exit_code == 0
    assert json.loads(run("config", "show", "--json").stdout) == config
    assert BackendOptimizer().load_config(saved) == config


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[]", "must hold one JSON object"),
        ("{", "is not JSON"),
        ('{"colour": 1}', "colour is no option: choose from backend, dtype"),
        ('{"threads": "two"}', "threads must be of type int, not 'two'"),
        ('{"threads": -1}', "threads must be 0 (let the engine choose) or more, not -1"),
        ('{"backend": "tpu"}', "there is no backend 'tpu'"),
    ],
)
def test_bad_files_are_refused(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    refused = run("config", "load", str(path))
    assert refused.exit_code == 2
    assert sentence in refused.stderr


def test_templates_are_listed_and_an_unknown_one_names_them() -> None:
    listed = run("backends", "optimize", "--templates").stdout
    assert all(name in listed for name in TEMPLATES)
    unknown = run("backends", "optimize", "--template", "quick")
    assert unknown.exit_code == 2
    assert "There is no template 'quick': choose auto or one of inference" in unknown.stderr


def test_benchmark_measures_every_operation_and_writes_statistics(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    arguments = ("--duration", "60", "--iterations", "2", "--batch-sizes", "1", "--seq-lengths", "16")
    done = run("backends", "benchmark", *arguments, "--hidden-sizes", "64", "--output", str(path))
    assert done.exit_code == 0
    rows = json.loads(path.read_text())["backends"]["cpu"]["rows"]
    assert [row["operation"] for row in rows] == [
        *(f"{name} 1x16x64" for name in ("matmul", "rms_norm", "gated_mlp", "attention")),
    ]
    assert all(row["runs"] == 2 and row["median_ms"] > 0 for row in rows)
    assert "gated_mlp 1x16x64" in done.stdout


def test_benchmark_refuses_nonsense() -> None:
    assert "'1,x' is no list of sizes" in run("backends", "benchmark", "--batch-sizes", "1,x").stderr
    assert "'int3' is no dtype" in run("backends", "benchmark", "--dtype", "int3").stderr
    absent = run("backends", "benchmark", "--backend", "cuda")
    assert absent.exit_code == 1
    assert "Backend cuda is not available" in absent.stderr
