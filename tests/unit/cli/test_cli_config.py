"""The configuration file: what it may say, and how it is refused."""

from pathlib import Path

import msgspec
import pytest

from polyfleet.cli.config import Config, config_schema, load_config
from polyfleet.cli.errors import CliError, ExitCode

FULL = """
gateway:
  grpc_listen: 127.0.0.1:6000
  limits: {max_queued: 5}
scheduler:
  listen: 127.0.0.1:6001
  state_dir: /var/lib/polyfleet
deployments:
  - name: small
    source: /models/small.gguf
    accelerators: [cuda, cpu]
    workers: 2
    options: {dtype: bfloat16, context_length: 4096}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "polyfleet.yaml"
    path.write_text(text)
    return path


def test_a_full_file_is_read(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, FULL))
    assert config.gateway.grpc_listen == "127.0.0.1:6000"
    assert config.gateway.limits.max_queued == 5
    assert config.scheduler.state_path == Path("/var/lib/polyfleet")
    (deployment,) = config.deployments
    assert (deployment.workers, deployment.accelerators) == (2, ("cuda", "cpu"))
    assert deployment.options == {"dtype": "bfloat16", "context_length": 4096}


@pytest.mark.parametrize("text", ["", "# nothing\n"])
def test_an_empty_file_means_defaults(tmp_path: Path, text: str) -> None:
    assert load_config(written(tmp_path, text)) == Config() == load_config(None)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("gatway: {}", "unknown field `gatway`"),
        ("gateway: {limits: {max_queue: 1}}", "unknown field `max_queue` - at `$.gateway.limits`"),
        ("scheduler: {listen: 5}", "at `$.scheduler.listen`"),
        ("deployments: [{name: a}]", "missing required field `source` - at `$.deployments[0]`"),
        ("deployments: [{name: a, source: b, workers: -1}]", "at `$.deployments[0].workers`"),
        ("deployments: [{name: a, source: b, options: {dtype: int3}}]", "not 'int3' - at `$.deployments[0].options`"),
        ("deployments: [{name: a, source: b}, {name: a, source: c}]", "Two deployments are named a"),
        ("scheduler: {accelerators: {GPU: {}}}", "accelerators: must be the name of an accelerator"),
        ("gateway: [", "not valid"),
    ],
)
def test_a_wrong_file_is_refused_with_path_and_reason(tmp_path: Path, text: str, problem: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(CliError) as caught:
        load_config(path)
    assert str(path) in caught.value.message
    assert problem in caught.value.message
    assert caught.value.message.count("\n") == 0 or text == "gateway: ["
    assert caught.value.exit_code == ExitCode.BAD_INPUT


def test_an_absent_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CliError, match="can't be read: No such file"):
        load_config(tmp_path / "absent.yaml")


def test_the_schema_describes_every_key_and_allows_no_other() -> None:
    definitions = config_schema()["$defs"]
    assert not [name for name, each in definitions.items() if "\n    " in each.get("description", "")]
    assert {"Config", "GatewayConfig", "SchedulerConfig", "Deployment"} <= set(definitions)
    assert definitions["Deployment"]["properties"]["options"]["additionalProperties"] is False
    for name, definition in definitions.items():
        assert definition["additionalProperties"] is False, name
    keys = {field.encode_name for field in msgspec.structs.fields(Config)}
    assert set(definitions["Config"]["properties"]) == keys
