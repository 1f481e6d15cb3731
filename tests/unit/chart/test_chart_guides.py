"""docs/operations: links lead somewhere, and every value that a guide names exists."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.helm_chart import CHART, EXAMPLES, ROOT

GUIDES = sorted((ROOT / "docs" / "operations").glob("*.md"))
SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
every_guide = pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.stem)
# Parts of a pool that guides name without a path.
POOL_PARTS = {"model", "options", "autoscaling", "resources"}


def resolved(node: dict[str, Any]) -> dict[str, Any]:
    """The definition that a reference means."""
    return resolved(SCHEMA["definitions"][node["$ref"].rpartition("/")[2]]) if "$ref" in node else node


def knows(node: dict[str, Any], path: list[str]) -> bool:
    """Whether the schema has this key."""
    node = resolved(node)
    if not path:
        return True
    head, *rest = path
    if head in node.get("properties", {}):
        return knows(node["properties"][head], rest)
    free = node.get("additionalProperties", True)
    return bool(free) if isinstance(free, bool) else knows(free, rest)


def values_named(text: str) -> set[str]:
    """Dotted keys in backticks that begin like a value of the chart, or a part of a pool."""
    words = re.findall(r"`([a-zA-Z]+(?:\.[a-zA-Z]+)+)(?:: [^`]*)?`", text)
    return {word for word in words if word.partition(".")[0] in SCHEMA["properties"].keys() | POOL_PARTS}


def test_the_guides_are_there() -> None:
    names = {path.stem for path in GUIDES}
    assert names >= {"install", "upgrade", "backup", "sizing", "security", "air-gap", "uninstall"}
    assert sum(len(values_named(path.read_text(encoding="utf-8"))) for path in GUIDES) > 20


@every_guide
def test_links_lead_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text(encoding="utf-8")):
        assert link.startswith("https://") or (path.parent / link).exists(), link


@every_guide
def test_named_values_exist(path: Path) -> None:
    for word in values_named(path.read_text(encoding="utf-8")):
        keys = word.split(".")
        place = SCHEMA["definitions"]["pool"] if keys[0] in POOL_PARTS else SCHEMA
        assert knows(place, keys), word


@every_guide
def test_files_named_in_commands_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for word in re.findall(r"(?:charts|deploy|tools)/[\w./-]+", text):
        assert (ROOT / word.rstrip(".")).exists(), word


def test_no_example_names_a_model_that_does_not_load() -> None:
    files = [
        *GUIDES,
        *(ROOT / "deploy").rglob("*.yaml"),
        CHART / "values.yaml",
        CHART / "README.md",
        ROOT / "README.md",
    ]
    table = (ROOT / "docs" / "models.md").read_text(encoding="utf-8").partition("<!-- end -->")[0].lower()
    families = (
        r"(?i)\b(qwen|gemma|mi[sx]tral|deepseek|gpt-oss|phi(?=-\d)|glm|minicpm|mamba|falcon|olmo|granite|command-r)"
    )
    for path in files:
        unknown = {f for f in re.findall(families, path.read_text(encoding="utf-8")) if f.lower() not in table}
        assert not unknown, (path, unknown)
    named = {
        pool["model"].get("hub", {}).get("repository", "HuggingFaceTB/")
        for path in EXAMPLES.values()
        for pool in yaml.safe_load(path.read_text(encoding="utf-8"))["workers"].values()
    }
    assert {name.partition("/")[0] for name in named} == {"HuggingFaceTB"}


def test_every_example_is_named_by_the_install_guide() -> None:
    text = (ROOT / "docs" / "operations" / "install.md").read_text(encoding="utf-8")
    assert all(f"deploy/examples/{path.name}" in text for path in EXAMPLES.values())
