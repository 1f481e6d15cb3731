"""The worker's command line: what it accepts, and what it makes of it."""

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from polyfleet.serving import command
from polyfleet.serving.command import config_of, main
from polyfleet.serving.config import WorkerConfig
from polyfleet.serving.process import describe, reachable
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.wire.options import OPTIONS


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the command line with the process itself replaced; returns the WorkerConfig or click's result."""
    made: list[WorkerConfig] = []

    class Recorder:
        def __init__(self, config: WorkerConfig) -> None:
            made.append(config)

        async def run(self) -> int:
            return 0

    monkeypatch.setattr(command, "WorkerProcess", Recorder)
    monkeypatch.setattr(command, "set_up_logging", lambda *_, **__: None)

    def run(*arguments: str) -> Any:
        made.clear()
        result = CliRunner().invoke(main, list(arguments))
        return made[0] if made else result

    return run


def test_defaults_are_a_worker_on_loopback_without_a_model(parse: Any) -> None:
    config = parse()
    assert (config.listen, config.metrics_listen, config.fleet) == ("127.0.0.1:0", "127.0.0.1:0", "")
    assert config.worker_id.startswith("w-")
    assert (config.load, config.lock_file) == (None, None)


def test_a_model_takes_its_name_from_deployment_or_file(parse: Any) -> None:
    load = parse("--model", "/models/Tiny.Q4_1.gguf", "--context-length", "512", "--dtype", "float32").load
    assert (load.source, load.model_name, load.deployment) == ("/models/Tiny.Q4_1.gguf", "Tiny.Q4_1", "")
    assert (load.options.context_length, load.options.dtype) == (512, "float32")
    assert parse("--model", "/m", "--deployment", "d").load.model_name == "d"
    assert parse("--model", "/m", "--deployment", "d", "--model-name", "n").load.model_name == "n"


def test_flags_override_the_files_section(parse: Any, tmp_path: Path) -> None:
    path = tmp_path / "polyfleet.yaml"
    path.write_text(
        "gateway: {listen: x}\nworker:\n  accelerator: cuda\n  max-sequences: 7\n  model: /m\n  fleet: h:1\n"
    )
    config = parse("--config", str(path), "--accelerator", "cpu")
    assert (config.accelerator, config.fleet, config.load.options.max_sequences) == ("cpu", "h:1", 7)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("worker: {listne: x}", "worker.listne is unknown"),
        ("worker: [1]", "Expected `object`, got `array` - at `$.worker`"),
        ("{", "is not valid"),
        ("worker: {threads: many}", "threads"),
        ("worker: {listen: here}", "host:port"),
        ("worker: {role: encode}", "'encode' is not one of 'both', 'prefill', 'decode'"),
    ],
)
def test_a_bad_file_is_refused_in_words(parse: Any, tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "polyfleet.yaml"
    path.write_text(content)
    result = parse("--config", str(path))
    assert result.exit_code == 2
    assert words in result.output


@pytest.mark.parametrize("address", ["50051", "127.0.0.1", ":50051", "127.0.0.1:70000", "a:b"])
def test_addresses_are_host_and_port(parse: Any, address: str) -> None:
    result = parse("--listen", address)
    assert result.exit_code == 2
    assert "is not host:port" in result.output


def test_help_has_examples(parse: Any) -> None:
    assert "python -m polyfleet.serving --model" in parse("--help").output


def test_reachable_addresses() -> None:
    assert reachable("127.0.0.1:0", 5, "") == "127.0.0.1:5"
    assert reachable("[::1]:0", 5, "") == "[::1]:5"
    assert reachable("0.0.0.0:0", 5, "pod-1") == "pod-1:5"
    host, _, port = reachable("0.0.0.0:0", 5, "").rpartition(":")
    assert (host not in ("", "0.0.0.0"), port) == (True, "5")


def test_an_absent_accelerator_is_left_for_loading_to_report(parse: Any) -> None:
    info = describe(parse("--accelerator", "no-such-accelerator"))
    assert (info.accelerator, info.device_name) == ("no-such-accelerator", "")


def test_a_launched_worker_says_whose_it_is(parse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert describe(parse("--accelerator", "cpu")).fleet_id == ""
    monkeypatch.setenv("POLYFLEET_FLEET_ID", "f")
    assert describe(parse("--accelerator", "cpu")).fleet_id == "f"


def test_a_worker_of_no_deployment_says_its_role(parse: Any, tmp_path: Path) -> None:
    (path := tmp_path / "polyfleet.yaml").write_text("worker: {role: decode, accelerator: cpu}")
    assert describe(parse("--accelerator", "cpu")).role == pb.WORKER_ROLE_UNSPECIFIED
    assert describe(parse("--config", str(path))).role == pb.WORKER_ROLE_DECODE
    assert describe(parse("--config", str(path), "--role", "prefill")).role == pb.WORKER_ROLE_PREFILL
    assert describe(parse("--config", str(path), "--role", "both")).role == pb.WORKER_ROLE_UNSPECIFIED


@pytest.mark.parametrize(
    ("others", "words"),
    [
        (["--deployment", "d"], "is for a worker without --deployment"),
        (["--transfer-listen", "off"], "with off, no prompt travels"),
    ],
)
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_role_that_would_mean_nothing_is_refused(parse: Any, role: str, others: list[str], words: str) -> None:
    result = parse("--role", role, *others)
    assert (result.exit_code, words in result.output) == (2, True), result.output
    assert isinstance(parse("--role", "both", *others), WorkerConfig)


def test_every_option_reaches_the_config(parse: Any) -> None:
    visible = {each.name for each in main.params if isinstance(each, click.Option) and each.name != "config"}
    reported = set(WorkerConfig.__dataclass_fields__) | {
        "model", "model_name", *OPTIONS
    }  # fmt: skip
    assert visible == reported - {"load"} | {"adapter", "join_tls", "join_ca_file"}  # which come with load and join
    assert config_of.__annotations__["return"] is WorkerConfig
