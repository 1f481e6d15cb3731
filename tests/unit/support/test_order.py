"""The order in which files of tests run."""

from pathlib import Path

from tests.conftest import LONGEST, ONE_STACK, ordered, unit_of_work

ROOT = Path(__file__).parents[3]


def test_every_file_that_is_named_is_there() -> None:
    assert [path for path in LONGEST if not (ROOT / path).exists()] == []
    for name in ONE_STACK:
        text = (ROOT / f"tests/e2e/test_e2e_{name}.py").read_text()
        assert "stack: ServeProcess" in text
        assert "own_stack" not in text


def test_waiting_files_are_spread_among_the_others_and_the_longest_come_first() -> None:
    computing = [f"tests/unit/{name}.py" for name in "abcdef"]
    found = ordered([*computing, "tests/integration/short.py", LONGEST[0]])
    assert found == [LONGEST[0], *computing[:3], "tests/integration/short.py", *computing[3:]]
    assert ordered(["tests/unit/a.py"]) == ["tests/unit/a.py"]
    assert ordered([]) == []


def test_who_shares_a_stack_is_one_unit_of_work() -> None:
    units = [unit_of_work(f"tests/e2e/test_e2e_{name}.py") for name in ("doors", "grpc", "ray")]
    assert units == ["tests/e2e", "tests/e2e", "tests/e2e/test_e2e_ray.py"]
    browsed = {unit_of_work(f"tests/integration/console/pages/test_browser_{name}.py") for name in ("chat", "pages")}
    assert len(browsed) == 1
    assert unit_of_work("tests/unit/test_e2e_doors.py") == "tests/unit/test_e2e_doors.py"
