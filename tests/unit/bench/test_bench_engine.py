"""The engine's benchmark: figures from timings, settings, peers that are left out, and a whole run on a tiny model."""

import subprocess
import sys
from pathlib import Path

import pytest
from bench import engine as bench
from bench.contenders.process import ContenderError, describe, running, sweep, unavailable
from bench.contenders.workload import WORKLOADS, Setting, Timing, Workload
from tests.support.tiny_models import TinyShape, write_folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = TinyShape(vocabulary=20_000, hidden=32, heads=2, kv_heads=1, intermediate=32, context=1024)
    return write_folder(tmp_path_factory.mktemp("model"), shape)


def test_decode_counts_what_came_after_the_last_first_token() -> None:
    workload = Workload("decode", num_sequences=2, prompt_tokens=10, new_tokens=5)
    assert workload.rate(Timing(prefill_seconds=1.0, decode_seconds=2.0, decode_tokens=7)) == 3.5


def test_prefill_counts_prompt_tokens_until_the_first_token() -> None:
    workload = Workload("prefill", num_sequences=2, prompt_tokens=10, new_tokens=1)
    assert workload.rate(Timing(prefill_seconds=4.0, decode_seconds=9.0, decode_tokens=0)) == 5.0


def test_prompts_are_the_same_for_everyone_and_new_in_each_round() -> None:
    workload = WORKLOADS[1]
    assert workload.prompts(3) == workload.prompts(3)
    assert workload.prompts(3) != workload.prompts(4)
    assert [len(prompt) for prompt in workload.prompts(0)] == [32] * 16


def test_sweeps_differ_in_every_setting_and_keep_the_threads() -> None:
    for peer in ("transformers", "llama.cpp", "openvino"):
        lines = [describe(setting) for setting in sweep(peer, "cpu", 2)]
        assert len(set(lines)) == len(lines) >= 4
        assert all("threads=2" in line for line in lines)


def test_peers_that_cannot_take_part_are_told_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.contenders.process.find_spec", lambda name: None)
    assert unavailable("openvino", tmp_path, "cpu") == "not installed (pip install openvino-genai)"
    monkeypatch.setattr("bench.contenders.process.find_spec", lambda name: object())
    assert unavailable("llama.cpp", tmp_path, "cpu") == "reads GGUF files only"
    assert unavailable("openvino", tmp_path, "cuda") == "measured on the CPU only, not on cuda"
    assert unavailable("transformers", tmp_path, "cuda") == ""


def test_rows_compare_with_each_peer() -> None:
    medians = {("decode_1", "polyfleet"): 30.0, ("decode_1", "a"): 20.0, ("decode_1", "b"): 60.0}
    rows = list(bench._rows(WORKLOADS[:1], medians, ("a", "b")))
    assert [(row.name, row.value, row.unit, row.peer, row.peer_value, row.ratio) for row in rows] == [
        ("decode_1", 30.0, "tokens/s", "a", 20.0, 1.5),
        ("decode_1", 30.0, "tokens/s", "b", 60.0, 0.5),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--peers", "nobody"], "--peers: nobody is not among transformers, llama.cpp, openvino"),
        (["--workloads", "decode_2"], "--workloads: decode_2 is not among decode_1, decode_16, prefill_512"),
        (["--model", "/nowhere/x.gguf"], "there is no such file or folder"),
        (["--repeats", "0"], "--repeats: must be 1 or more"),
        (["--profile"], "--profile: belongs to an accelerator's table: give its --device, and none of --model"),
        (["--device", "cuda", "--weights", "fp8"], "--weights: belongs to an accelerator's table"),
        (["--device", "cuda", "--overhead", "--vllm", "/nowhere"], "--vllm: belongs to an accelerator's table"),
        (["--shapes", "tiny"], "--shapes: belongs to an accelerator's table"),
    ],
)
def test_bad_arguments_are_named(
    arguments: list[str], message: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        bench.parse(["--model", str(model), *arguments])
    assert raised.value.code == 2
    assert message in capsys.readouterr().err


def test_a_contender_that_cannot_load_says_why(tmp_path: Path) -> None:
    setting: Setting = {"device": "cpu", "dtype": "float32", "executor": "auto", "threads": 1}
    with (
        pytest.raises(ContenderError, match=r"ModelFileError: .*nothing"),
        running("polyfleet", tmp_path / "nothing", setting),
    ):
        pass


def test_it_runs_without_grpc() -> None:
    """As on a machine that has a card, torch and little else."""
    program = "import sys; sys.modules |= dict.fromkeys(('grpc', 'google', 'ray')); import bench.engine"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[3])
