"""Models that examples, the chart and the documentation name: a tiny checkpoint of each one's architecture loads."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.tiny_architectures import TINY, make

from polyfleet.engine.engine import Engine
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import SequenceRequest

ROOT = Path(__file__).parents[3]
FAMILIES: Mapping[str, str] = {"smollm2": "llama"}  # how names begin -> of TINY; a new example's belongs here
SOURCES = ("name", "path", "repository", "uri", "reference")  # keys of a `model` that say which it is
FLAG = re.compile(r"--model(?:-name)?[= ]([\w./-]+)|\bMODEL(?:_NAME)?=([\w./-]+)")
HUB = re.compile(r"\b[A-Z][\w-]*/[A-Za-z][\w.]*-[\w.]*\d[BM]\b[\w.-]*")
PLACES = {"models", "model", "main", "path"}  # folders, and what stands for a name


def named() -> set[str]:
    """What YAML of examples, compose files and values call their models, and names on the hub in documents."""
    found: set[str] = set()
    for file in [*(ROOT / "deploy").rglob("*.yaml"), ROOT / "charts/polyfleet/values.yaml"]:
        text = file.read_text(encoding="utf-8")
        found.update(name for document in yaml.safe_load_all(text) for name in _models(document))
        found.update(first or second for first, second in FLAG.findall(text))
        found.update(HUB.findall(text))
    for file in [
        *(ROOT / "docs").rglob("*.md"),
        *filter(Path.is_file, (ROOT / "docker").iterdir()),
        ROOT / "README.md",
    ]:
        found.update(HUB.findall(file.read_text(encoding="utf-8")))
    return {last for name in found if (last := name.rstrip("/").rpartition("/")[2].lower()) not in PLACES}


def _models(value: Any) -> Iterator[str]:
    """Of each `model` in a document."""
    if isinstance(value, list):
        for each in value:
            yield from _models(each)
    elif isinstance(value, dict):
        for key, each in value.items():
            if key == "model" and isinstance(each, dict):
                kinds = [each, *(inner for inner in each.values() if isinstance(inner, dict))]
                yield from (kind[name] for kind in kinds for name in SOURCES if isinstance(kind.get(name), str))
            else:
                yield from _models(each)


def family_of(name: str) -> str:
    return next((family for family in FAMILIES if name.startswith(family)), "")


def test_every_model_that_is_named_is_of_a_known_family() -> None:
    names = named()
    assert {"smollm2-1.7b-instruct", "smollm2-135m-instruct.q4_1.gguf"} <= names
    assert {name for name in names if name and not family_of(name)} == set()


@pytest.mark.parametrize("family", sorted({family_of(name) for name in named()} - {""}))
def test_a_tiny_checkpoint_of_its_architecture_loads(family: str, tmp_path: Path) -> None:
    make(TINY[FAMILIES[family]], tmp_path)
    engine = Engine.load(str(tmp_path), EngineOptions(device="cpu", threads=1, context_length=32))
    engine.add(SequenceRequest("x", (3, 4), max_tokens=2, ignore_eos=True))
    updates = [update for _ in range(8) if engine.has_work for update in engine.step()]
    assert sum(len(each.tokens) for each in updates) == 2
    engine.close()
