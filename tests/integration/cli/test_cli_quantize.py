"""`polyfleet quantize`: perplexities before and after, and what it refuses."""

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.support.tiny_models import TinyShape, write_folder
from tests.support.tiny_tokenizers import tokenizer_json

from polyfleet.cli.main import cli

SHAPE = TinyShape(vocabulary=300, layers=1, hidden=64, intermediate=64)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = write_folder(tmp_path / "model", SHAPE)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    return folder


def test_perplexities_before_and_after(source: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("hello " * 12)
    command = ("quantize", str(source), str(tmp_path / "small"), "--to", "int8", "--text", str(text), "--json")
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["to"], found["group"], found["quantised"]) == ("int8", 64, 7)
    before, after = found["perplexity"]["before"], found["perplexity"]["after"]
    assert 1 < before < math.inf
    assert before != after
    assert after == pytest.approx(before, rel=0.1)


def test_what_is_refused(source: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "small")
    for arguments, problem in (
        ((str(source), target, "--to", "int4", "--group", "48"), "--group must be a multiple of 32, not 48."),
        ((str(source), target, "--to", "int4", "--group", "128"), "groups of 128 columns don't divide rows of 64."),
        ((str(tmp_path / "none"), target, "--to", "int4"), "is no Hugging Face folder: there is no such folder."),
        ((str(source / "config.json"), target, "--to", "int4"), "GGUF files are quantised already."),
    ):
        done = CliRunner().invoke(cli, ("quantize", *arguments))
        assert problem in str(done.exception) + done.output, done.output
        assert done.exit_code != 0
