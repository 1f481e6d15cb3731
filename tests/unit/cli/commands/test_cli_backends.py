"""`polyfleet backends`, `conformance` and `config save | load | show`: what users type, read and get refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from polyfleet.backends import BackendOptimizer, BackendRegistry, get_backend, registry
from polyfleet.backends.cpu import CpuBackend
from polyfleet.backends.protocol import DeviceTelemetry, Health, KernelCapabilities
from polyfleet.cli.main import cli
from polyfleet.conformance.report import CheckResult, ConformanceReport, Outcome
from polyfleet.tuning.choice import user_choice, write_choice
from polyfleet.tuning.templates import TEMPLATES


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
    assert unknown.exit_code == 2
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
    assert "(it was chosen by POLYFLEET_BACKEND)" in refused.stderr


def test_the_environment_variable_may_be_written_as_names_are(monkeypatch: pytest.MonkeyPatch) -> None:
    run("backends", "optimize", "--backend", "cpu", "--apply")
    monkeypatch.setenv("POLYFLEET_BACKEND", " CPU ")
    assert user_choice()["max_sequences"] > 0


def test_info_says_which_backend_is_in_use_and_why_one_chosen_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "BUILT_IN", {name: registry.BUILT_IN[name] for name in ("ascend", "cpu")})
    assert json.loads(run("backends", "info", "--json").stdout)["in_use"] == "cpu"
    run("backends", "set", "cpu")
    assert "available  it was chosen with `polyfleet backends set`" in run("backends", "info").stdout
    for name, sentence in (("ascend", "no Huawei Ascend device is present"), ("tpu", "here is no backend 'tpu'")):
        monkeypatch.setenv("POLYFLEET_BACKEND", name)
        shown = run("backends", "info")
        assert shown.exit_code == 0
        assert "chosen" not in shown.stdout
        assert sentence in shown.stderr
        assert "(it was chosen by POLYFLEET_BACKEND)" in shown.stderr
        facts = json.loads(run("backends", "info", "--json").stdout)
        assert facts["in_use"] == ""
        assert sentence in facts["problem"]


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
        ("[" * 100_000, "is not JSON"),
        ('{"colour": 1}', "colour: is no option: choose from backend, dtype"),
        ('{"threads": "two"}', "threads: must be a whole number from 1 to 2147483647, or 0 for"),
        ('{"block_size": -1}', "block_size: must be a whole number from 1 to 2147483647, or 0 for"),
        ('{"backend": "tpu"}', "there is no backend 'tpu'"),
    ],
)
def test_bad_files_are_refused(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    refused = run("config", "load", str(path))
    assert refused.exit_code == 2
    assert refused.stderr.startswith(f"Error: The file {path} ")
    assert sentence in refused.stderr


def test_saving_touches_no_file_but_the_one_named(tmp_path: Path) -> None:
    neighbour, linked = tmp_path / "mine.new", tmp_path / "linked.json"
    neighbour.write_text("a file of the user's")
    linked.symlink_to(tmp_path / "mine.json")
    assert run("config", "save", str(linked)).exit_code == 0
    assert json.loads((tmp_path / "mine.json").read_text()) == {}
    assert linked.is_symlink()
    assert neighbour.read_text() == "a file of the user's"
    assert {path.name for path in tmp_path.iterdir()} == {"mine.new", "linked.json", "mine.json"}


def test_saving_into_what_is_no_file_does_not_replace_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE) as reader:
        write_choice(pipe, {"threads": 2})
        written, _ = reader.communicate(timeout=10)
    assert json.loads(written) == {"threads": 2}
    assert pipe.is_fifo()


def test_a_choice_that_can_not_be_written_or_removed_is_a_sentence(tmp_path: Path) -> None:
    place = tmp_path / "config" / "polyfleet" / "backend.json"
    place.mkdir(parents=True)
    for arguments in (("set", "cpu"), ("reset",)):
        refused = run("backends", *arguments)
        assert refused.exit_code == 1
        assert refused.stderr.startswith(f"Error: {place} can't be ")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_output_onto_a_full_disk_is_a_sentence() -> None:
    command = [sys.executable, "-m", "polyfleet.cli", "backends", "optimize", "--templates"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "Error: the output can't be written: No space left on device.\n")


def test_templates_are_listed_and_an_unknown_one_names_them() -> None:
    listed = run("backends", "optimize", "--templates").stdout
    assert all(name in listed for name in TEMPLATES)
    assert list(json.loads(run("backends", "optimize", "--templates", "--json").stdout)) == list(TEMPLATES)
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


class Cpu(CpuBackend):
    """The CPU with readings that the test gives."""

    def __init__(self, reading: DeviceTelemetry) -> None:
        super().__init__()
        self._reading = reading

    def telemetry(self) -> tuple[DeviceTelemetry, ...]:
        return (self._reading,)


def test_benchmark_says_that_a_device_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    full = DeviceTelemetry(0, Health.HEALTHY, memory_used_bytes=97, memory_total_bytes=100)
    monkeypatch.setitem(BackendRegistry._instances, "cpu", Cpu(full))
    done = run("backends", "benchmark", "--backend", "cpu")
    assert done.exit_code == 1
    assert "Device 0 of cpu is full: free some of its memory first." in done.stderr


def test_benchmark_says_that_a_device_is_busy_and_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = DeviceTelemetry(0, Health.HEALTHY, utilization_ratio=0.8)
    monkeypatch.setitem(BackendRegistry._instances, "cpu", Cpu(busy))
    arguments = ("--iterations", "1", "--batch-sizes", "1", "--seq-lengths", "16", "--hidden-sizes", "64")
    done = run("backends", "benchmark", "--backend", "cpu", *arguments)
    assert done.exit_code == 0
    assert "Device 0 is busy: 80% used by others, so figures will be low." in " ".join(done.stderr.split())
    assert "matmul 1x16x64" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("backends", "test"),
        ("backends", "optimize", "--backend"),
        ("backends", "benchmark", "--backend"),
        ("conformance", "--backend"),
        ("generate", "--prompt", "hi", "--offline", "model.gguf", "--device"),
    ],
)
def test_every_command_answers_an_unknown_backend_with_the_names(arguments: tuple[str, ...]) -> None:
    refused = run(*arguments, "tpu")
    assert refused.exit_code == 2
    assert "here is no backend 'tpu': choose auto or one of cuda, rocm" in " ".join(refused.stderr.split())


def test_a_choice_that_can_not_be_had_says_where_it_was_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POLYFLEET_BACKEND", "ascend")
    refused = run("backends", "optimize")
    assert refused.exit_code == 3
    assert "no Huawei Ascend device is present" in refused.stderr
    assert "(it was chosen by POLYFLEET_BACKEND)" in " ".join(refused.stderr.split())
    monkeypatch.delenv("POLYFLEET_BACKEND")
    chosen = tmp_path / "config" / "polyfleet" / "backend.json"
    chosen.parent.mkdir(parents=True)
    chosen.write_text('{"backend": "ascend"}')
    refused = run("backends", "list")
    assert "(it was chosen with `polyfleet backends set`; `reset` forgets it)" in " ".join(refused.stderr.split())
    assert run("backends", "reset").exit_code == 0
    assert run("backends", "list").exit_code == 0


def test_benchmark_refuses_nonsense() -> None:
    assert "'1,x' is no list of sizes" in run("backends", "benchmark", "--batch-sizes", "1,x").stderr
    assert "is no list of sizes" in run("backends", "benchmark", "--batch-sizes", "9" * 5000).stderr
    assert "'²' is no list of sizes" in run("backends", "benchmark", "--batch-sizes", "²").stderr
    assert "bfloat16, not 'int3'" in run("backends", "benchmark", "--dtype", "int3").stderr
    assert "nan is no finite number" in run("backends", "benchmark", "--duration", "nan").stderr
    absent = run("backends", "benchmark", "--backend", "cuda")
    assert absent.exit_code == 1
    assert "Backend cuda is not available" in absent.stderr


def test_benchmark_fails_when_one_asked_for_by_name_does() -> None:
    sizes = ("--iterations", "1", "--batch-sizes", "1", "--seq-lengths", "16", "--hidden-sizes", "64")
    done = run("backends", "benchmark", "--backend", "cpu", "--backend", "ascend", *sizes)
    assert done.exit_code == 1
    assert "matmul 1x16x64" in done.stdout
    assert "Backend ascend is not available" in done.stderr


def test_benchmark_has_nothing_to_measure_where_torch_has_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    shaders = KernelCapabilities(frozenset({"float32"}), "float32", executors=("vulkan",))
    monkeypatch.setattr(CpuBackend, "capabilities", lambda self, device: shaders)
    monkeypatch.setitem(BackendRegistry._instances, "vulkan", CpuBackend())
    done = run("backends", "benchmark", "--backend", "vulkan")
    assert done.exit_code == 1
    assert "Vulkan is no device of torch" in done.stderr


def test_the_conformance_report_keeps_the_name_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = ConformanceReport("cpu", "a CPU", {}, (CheckResult("devices", Outcome.PASSED, ""),)).to_json()
    child = subprocess.CompletedProcess((), 0, json.dumps(answer), "")
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: child)
    for name in ("report.h100", "other.json"):
        run("conformance", "--output", str(tmp_path / name))
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"report.h100.json", "report.h100.txt", "other.json", "other.txt"}


def test_names_of_files_are_shown_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "[").mkdir()
    for name in ("[bold].json", "[/x].json"):
        path = str(tmp_path / name)
        assert run("config", "save", path).stdout == f"Saved to {path}.\n"
        assert run("config", "load", path).stdout == f"Loaded {path}.\n"


def test_a_report_that_can_not_be_written_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = ConformanceReport("cpu", "a CPU", {}, (CheckResult("devices", Outcome.PASSED, ""),)).to_json()
    child = subprocess.CompletedProcess((), 0, json.dumps(answer), "")
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: child)
    done = run("conformance", "--backend", "cpu", "--output", str(tmp_path / "absent" / "report"))
    assert done.exit_code == 1
    assert "Conformance of cpu on a CPU" in done.stdout
    assert "absent/report.json can't be written: No such file or directory" in done.stderr
