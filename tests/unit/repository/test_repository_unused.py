"""The check for names that only tests use finds them, and nothing else."""

import textwrap
from pathlib import Path

import pytest
from tools import find_unused


def unused(root: Path, *allowed: str, **files: str) -> list[str]:
    """What it finds in these files of a repository."""
    for name, source in {"services/empty.py": "", **files}.items():
        path = root / name.replace("__", "/")
        path = path if path.suffix else path.with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
    (root / "README.md").write_text("Call `shown_in_code()`, not shown_in_prose:\n\n    shown_in_block(1)\n")
    (root / "pyproject.toml").write_text('[project.scripts]\ncommand = "polyfleet.cli:entry_point"\n')
    readers = find_unused.read(root, find_unused.USERS)
    found, unneeded = find_unused.unused(readers, find_unused.said_elsewhere(root), allowed)
    return [*found, *sorted(unneeded)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(): ...", ["f"]),
        ("async def f(): ...", ["f"]),
        ("LIMIT = 3", ["LIMIT"]),
        ("LIMIT: int = 3", ["LIMIT"]),
        ("class A: ...", ["A"]),
        ("class A:\n    def m(self): ...\nA()", ["A.m"]),
        ("class A:\n    field: int = 3\nA(field=4)", ["A.field"]),
        ("class A:\n    @property\n    def p(self): ...\nA()", ["A.p"]),
        ("def _hidden(): ...", ["_hidden"]),
        ("def f():\n    f()", ["f"]),
        ("def f(): ...\ndef g():\n    f()", ["f", "g"]),
        ("def f():\n    g()\ndef g():\n    f()", ["f", "g"]),
        ("def shown_in_prose(): ...", ["shown_in_prose"]),
        ("__all__ = ['f']\ndef f(): ...", ["f"]),
        ("def f(): ...\nprint(f)", []),
        ("def shown_in_code(): ...\ndef shown_in_block(): ...\ndef entry_point(): ...", []),
        ("class A:\n    field: int\nprint(A(1).field)", []),
        ("class A:\n    field: int\nmatch A(1):\n    case A(field=2): ...", []),
        ("@register('name')\nclass A:\n    ...", []),
        ("@command()\ndef f(): ...", []),
        ("import other\nclass A(other.Base):\n    constant = 1\n    def called_by_it(self): ...\nA()", []),
        ("from other import Base\nclass A(Base): ...\nclass B(A):\n    def called_by_it(self): ...\nB()", []),
        ("Base = object\nclass A(Base):\n    def called_by_it(self): ...\nA()", []),
        ("from typing import Protocol\nclass A(Protocol):\n    def m(self): ...\nA()", ["A.m"]),
        ("from enum import Enum\nclass E(Enum):\n    ONE = 1\nE(1)", []),
        ("class A: ...\ndef f(a: 'list[A]'): ...\nf", []),
        ("LOADED = 'polyfleet.x:Thing'\nclass Thing: ...\nprint(LOADED)", []),
        ("def f(): ...\ngetattr(module, 'f')", []),
        ("def f():\n    local = 3\n    def inner(): ...\nf()", []),
        ("class A:\n    def __enter__(self): ...\nA()", []),
    ],
)
def test_what_is_unused(tmp_path: Path, source: str, expected: list[str]) -> None:
    assert unused(tmp_path, services__a=source) == [f"services/a.py:{name}" for name in expected]


def test_tests_are_no_users_and_benchmarks_are(tmp_path: Path) -> None:
    found = unused(
        tmp_path, workers__a="def f(): ...\ndef g(): ...", tests__test_a="f()\ng()", bench__b="from a import f\nf()"
    )
    assert found == ["workers/a.py:g"]


def test_an_import_alone_is_no_use(tmp_path: Path) -> None:
    assert unused(tmp_path, services__a="def f(): ...", services__b="from a import f") == ["services/a.py:f"]
    assert unused(tmp_path, services__b="from a import f as other") == []


def test_a_call_of_the_wire_is_a_use(tmp_path: Path) -> None:
    calls = {"proto/v1.proto": "service S {\n  rpc Drain (A) returns (B);\n}"}
    assert unused(tmp_path, services__a="class S:\n    def Drain(self): ...\nS()", **calls) == []


def test_exceptions_hold_for_what_they_need_and_must_be_needed(tmp_path: Path) -> None:
    allowed = ("services/a.py:f*", "services/a.py:gone")
    source = "def f_one():\n    helper()\ndef helper(): ..."
    assert unused(tmp_path, *allowed, services__a=source) == ["services/a.py:gone"]


def test_every_exception_has_a_reason() -> None:
    assert [name for name, reason in find_unused.ALLOWED.items() if len(reason) < 8] == []
