"""Fields of log lines: none has a name that logging keeps for itself, where the line would be a KeyError instead."""

import ast
import logging
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
SOURCES = [path for folder in ("services", "workers", "proto") for path in sorted((ROOT / folder).rglob("*.py"))]
KEPT = {*vars(logging.makeLogRecord({})), "message", "asctime"}


def fields(tree: ast.AST) -> Iterator[str]:
    """Of every `extra={…}`, and of dicts that are named `fields`, as those are that several lines share."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "extra":
            value: ast.AST | None = node.value
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and "fields" in ast.unparse(node).partition("=")[0]:
            value = node.value
        else:
            continue
        for each in ast.walk(value) if value is not None else ():
            keys = each.keys if isinstance(each, ast.Dict) else ()
            yield from (key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str))


def test_no_field_of_a_log_line_has_a_name_of_loggings_own() -> None:
    found = {
        (path.relative_to(ROOT).as_posix(), name) for path in SOURCES for name in fields(ast.parse(path.read_text()))
    }
    assert len(found) > 50
    assert [each for each in sorted(found) if each[1] in KEPT] == []


def test_it_would_be_found() -> None:
    assert set(fields(ast.parse('log.error("x", extra={"process": 1, "a": 2})'))) == {"process", "a"}
    assert set(fields(ast.parse('fields = {"name": 1} | more'))) == {"name"}
