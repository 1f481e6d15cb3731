"""`polyfleet inspect` over a tiny model."""

import json
from pathlib import Path

from click.testing import CliRunner
from tests.support.tiny_models import TinyShape, write_folder

from polyfleet.cli.main import cli


def test_inspect(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", TinyShape())
    done = CliRunner().invoke(cli, ["inspect", str(folder), "--json"])
    assert done.exit_code == 0, done.output
    seen = json.loads(done.output)
    assert (seen["name"], seen["architecture"], seen["tokenizer"]) == ("model", "Llama", False)
    assert seen["parameters"] == sum(seen["formats"].values()) > 0
    cpu = next(each for each in seen["fits"] if each["device"] == "cpu")
    assert cpu["problem"] == ""
    assert 0 < cpu["context_length"] <= seen["context_length"]
    assert cpu["weight_bytes"] > 0 < cpu["kv_bytes_per_token"]
    plain = CliRunner().invoke(cli, ["inspect", str(folder)])
    assert "model: Llama" in plain.output
    assert CliRunner().invoke(cli, ["inspect", str(tmp_path / "none")]).exit_code != 0
