"""The benchmark of speculation on a command line."""

import pytest
from bench.speculation import parse


@pytest.mark.parametrize("arguments", [["--repeats", "0"], ["--sequences", "1,x"], ["--tokens", "-1"]])
def test_what_can_not_be_measured_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse([*arguments, "--model", "m"])
    assert "must be 1 or more" in capsys.readouterr().err


def test_sequences_are_numbers() -> None:
    assert parse(["--sequences", "1,4", "--model", "m"]).sequences == [1, 4]
