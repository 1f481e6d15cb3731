"""`polyfleet generate --offline`: the engine alone, through the command, in this process."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.support.text_assets import assets_document
from tests.support.tiny_models import TinyShape, write_folder

from polyfleet.cli import offline
from polyfleet.cli.main import cli
from polyfleet.cli.stack.settings import bundled_model
from polyfleet.engine.offline import generate_offline
from polyfleet.text.model_text import ModelText

PROMPT = (5, 6, 7, 8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model without a tokenizer."""
    return write_folder(tmp_path_factory.mktemp("offline") / "tiny", TinyShape())


def run(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ("generate", "--offline", str(path), *arguments))


def answer(path: Path, *arguments: str) -> dict[str, Any]:
    done = run(path, "--prompt-ids", "5,6,7,8", "--json", *arguments)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.count("\n") == 1
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_it_is_greedy_and_says_what_the_engine_says(folder: Path) -> None:
    expected = generate_offline(str(folder), PROMPT, max_tokens=50, dtype="float32", ignore_eos=True)
    found = answer(folder, "--max-tokens", "50", "--dtype", "float32", "--ignore-eos")
    assert found == {"token_ids": list(expected.token_ids), "text": "", "finish_reason": "length"}
    assert len(found["token_ids"]) == 50


def test_the_end_token_ends_it_unless_ignored(tmp_path: Path) -> None:
    free = answer(write_folder(tmp_path / "free", TinyShape()), "--dtype", "float32", "--ignore-eos")["token_ids"]
    end = free[5]
    ending = write_folder(tmp_path / "ending", TinyShape(eos_token_id=end))
    stopped = answer(ending, "--dtype", "float32")
    assert stopped == {"token_ids": free[: free.index(end)], "text": "", "finish_reason": "stop"}
    assert answer(ending, "--dtype", "float32", "--ignore-eos")["token_ids"] == free
    longer = answer(ending, "--dtype", "float32", "--min-tokens", "30")["token_ids"]
    assert len(longer) >= 30
    assert end not in longer


def test_a_seed_repeats_a_draw(folder: Path) -> None:
    draw = ("--temperature", "2", "--ignore-eos", "--dtype", "float32")
    first = answer(folder, *draw, "--seed", "7")["token_ids"]
    assert first == answer(folder, *draw, "--seed", "7")["token_ids"]
    assert first != answer(folder, *draw, "--seed", "8")["token_ids"]


def test_the_models_own_defaults_hold_when_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = ModelText(assets_document(sampling_defaults={"temperature": 2.0}))
    monkeypatch.setattr(offline, "text_of", lambda engine: own)
    common = ("--ignore-eos", "--dtype", "float32", "--seed", "7")
    greedy, auto = answer(folder, *common), answer(folder, *common, "--generation-config", "auto")
    assert auto == answer(folder, *common, "--temperature", "2") != greedy
    assert answer(folder, *common, "--generation-config", "none") == greedy
    assert answer(folder, *common, "--generation-config", "auto", "--temperature", "0") == greedy


def test_ids_are_printed_where_there_is_no_text(folder: Path) -> None:
    ids = answer(folder, "--max-tokens", "3", "--ignore-eos", "--dtype", "float32")["token_ids"]
    plain = run(folder, "--prompt-ids", "5,6,7,8", "--max-tokens", "3", "--ignore-eos", "--dtype", "float32")
    assert plain.stdout == ",".join(map(str, ids)) + "\n"


def test_text_of_a_real_model() -> None:
    done = run(bundled_model(), "--prompt", "The capital of France is", "--max-tokens", "4", "--json")
    found = json.loads(done.stdout)
    assert found["text"].startswith(" Paris")
    assert len(found["token_ids"]) == 4


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--prompt", "text"), "has no tokenizer: give --prompt-ids"),
        (("--prompt-ids", "96"), "below the vocabulary size 96"),
        (("--prompt-ids", ",".join(["1"] * 257)), "257"),
    ],
)
def test_bad_prompts_are_one_sentence(folder: Path, arguments: tuple[str, ...], problem: str) -> None:
    done = run(folder, *arguments)
    assert done.exit_code == 2
    assert problem in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("damage", ["absent", "empty", "cut off", "no weights"])
def test_bad_files_are_one_sentence(folder: Path, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "bad"
    if damage == "empty":
        path.write_bytes(b"")
    elif damage == "cut off":
        path.write_bytes(bundled_model().read_bytes()[:5000])
    elif damage == "no weights":
        path.mkdir()
        (path / "config.json").write_bytes((folder / "config.json").read_bytes())
    done = run(path, "--prompt-ids", "1")
    assert done.exit_code == 2
    assert str(path) in done.stderr
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1
