"""Benchmarks' command lines: what is wrong with them is found before anything runs, and said in a sentence."""

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest
from bench.command import above_zero, parser_of, positive, run

from polyfleet.models.errors import ModelFileError


def test_rows_go_to_a_new_file_or_over_an_old_one(tmp_path: Path) -> None:
    parser, file = parser_of("What it measures."), tmp_path / "rows.json"
    assert (parser.parse_args([]).json, parser.parse_args(["--json", str(file)]).json) == (None, file)
    file.touch()
    assert parser.parse_args(["--json", str(file)]).json == file


@pytest.mark.parametrize("where", ["", "absent/rows.json"])
def test_rows_that_could_not_be_written_are_refused_at_once(
    tmp_path: Path, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parser_of("").parse_args(["--json", str(tmp_path / where)])
    assert "give a file in a folder that is there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "bad"), [(positive, "0"), (positive, "-1"), (above_zero, "0"), (above_zero, "nan"), (above_zero, "inf")]
)
def test_numbers_of_which_nothing_could_be_measured_are_refused(kind: Callable[[str], float], bad: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be"):
        kind(bad)
    assert kind("2") == 2


def test_a_refusal_is_a_sentence_and_a_fault_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def end(error: Exception) -> Callable[[], int]:
        def main() -> int:
            raise error

        return main

    for error in (ModelFileError("/m: there is no such file or folder"), KeyError("asked for")):
        with pytest.raises(SystemExit) as ended:
            run(end(error), KeyError)
        assert ended.value.code == 2
        assert capsys.readouterr().err == f"error: {error}\n"
    with pytest.raises(ZeroDivisionError):
        run(end(ZeroDivisionError()))
    with pytest.raises(SystemExit) as ended:
        run(lambda: 3)
    assert ended.value.code == 3
