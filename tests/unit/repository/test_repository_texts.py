"""What the texts name is there: paths, links, commands with their flags, targets of make, dependencies."""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest
from packaging.requirements import Requirement
from tests.support import requirements
from tests.support.helm_chart import ROOT

from polyfleet.cli.main import cli

TEXTS = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "charts/polyfleet/README.md",
        *(ROOT / "docs").rglob("*.md"),
    ]
)
every_text = pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
CODE = re.compile(r"```.*?```|^ {4}.*?$|`[^`\n]+`", re.M | re.S)
SUFFIXES = "c|cpp|csv|h|inl|ini|json|lock|md|prom|proto|py|sh|toml|tpl|wgsl|yaml|yml"
PATH = re.compile(rf"(?<![\w/<$:.@~*-])(?:\.?[\w-]+(?:/[\w.*-]+)+/?|[\w-]+\.(?:{SUFFIXES}))(?![\w<…])")


@cache
def tracked() -> frozenset[str]:
    """Files and folders of the repository, from its top."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split()
    files = [Path(name) for name in listed]
    return frozenset({path.as_posix() for file in files for path in (file, *file.parents)} - {"."})


def is_there(path: str) -> bool:
    """Whether the repository has it, from its top or, for a part of a path, somewhere."""
    if "*" in path:
        return bool(list(ROOT.glob(path)))
    return path in tracked() or any(each.endswith(f"/{path}") for each in tracked())


def codes(text: Path) -> Iterator[str]:
    """What is set as code, with lines that go on joined."""
    for found in CODE.findall(text.read_text(encoding="utf-8")):
        yield found.replace("\\\n", " ")


def paths(text: Path) -> set[str]:
    """What code calls by a path from a folder of the repository, or by a name of one of its kinds of source."""
    tops = {each.partition("/")[0] for each in tracked() if "/" in each}
    found = {each.rstrip("/.") for code in codes(text) for each in PATH.findall(code)}
    sources = re.compile(r"\.(?:cpp|h|inl|proto|py|tpl|wgsl)$")
    return {each for each in found if each.partition("/")[0] in tops or sources.search(each)} - {"llama.cpp"}


@every_text
def test_paths_exist(text: Path) -> None:
    assert {each for each in paths(text) if not is_there(each)} == set()


def test_paths_are_found() -> None:
    found = paths(ROOT / "CONTRIBUTING.md")
    assert {"tests/unit", "workers/polyfleet/models/registry.py"} <= found
    assert not is_there("workers/polyfleet/nothing.py")
    assert not is_there("nothing.py")


def anchors(text: Path) -> set[str]:
    """Names by which GitHub links to headings."""
    plain = re.sub(r"```.*?```", "", text.read_text(encoding="utf-8"), flags=re.S)
    titles = [title.lower() for title in re.findall(r"^#+ (.*?) *$", plain, re.M)]
    return {re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in titles}


@every_text
def test_links_lead_somewhere(text: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", text.read_text(encoding="utf-8")):
        if not link.startswith("https://"):
            name, _, anchor = link.partition("#")
            target = (text.parent / name).resolve() if name else text
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


@cache
def commands() -> dict[tuple[str, ...], set[str]]:
    """The flags of each command of `polyfleet`, by its words."""
    found: dict[tuple[str, ...], set[str]] = {}

    def add(command: click.Command, words: tuple[str, ...]) -> None:
        flags = {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)}
        found[words] = flags | {"--help", "-h"}
        for name, inner in (command.commands if isinstance(command, click.Group) else {}).items():
            add(inner, (*words, name))

    add(cli, ())
    return found


def calls(text: Path) -> Iterator[tuple[str, ...]]:
    """The words behind `polyfleet` where code begins with it, perhaps with its folder, or it stands behind a pipe."""
    for code in codes(text):
        for line in code.strip("`").splitlines():
            for found in re.findall(r"(?:^|[|&`(]) *(?:\S*bin/)?polyfleet (?!is |…)([^#|&`)…]+)", line.strip()):
                yield tuple(found.split())


@every_text
def test_commands_take_what_they_are_given(text: Path) -> None:
    for words in calls(text):
        command: tuple[str, ...] = ()
        while (*command, *words[len(command) : len(command) + 1]) in commands() and len(command) < len(words):
            command = words[: len(command) + 1]
        assert command, words
        flags = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert flags - commands()[command] == set(), words


def test_calls_are_found() -> None:
    assert ("workers",) in {words[:1] for words in calls(ROOT / "README.md")}
    assert len([words for text in TEXTS for words in calls(text)]) > 30


@every_text
def test_targets_of_make_exist(text: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.M))
    for code in codes(text):
        for line in code.strip("`").splitlines():
            words = re.findall(r"^(?:\w+=\S+ )*make((?: [a-z][a-z-]*(?![\w=]))+)", line.strip())
            assert {target for word in words for target in word.split()} - targets == set(), line


def test_the_readme_names_every_page() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("*/README.md")]
    assert [page.name for page in pages if page.relative_to(ROOT).as_posix() not in text] == []
    assert "CONTRIBUTING.md" in text


def required(*extras: str) -> set[str]:
    """Names that these extras add to what every installation has; without any, the latter."""
    project = requirements.read((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    own = {Requirement(line).name.lower() for line in requirements.required(project, list(extras))}
    return own - required() if extras else own


@pytest.mark.parametrize(
    ("title", "extras", "beside"),
    [
        ("Every installation", (), set()),
        ("`gateway`", ("gateway",), set()),
        ("`scheduler`", ("scheduler",), set()),
        ("`worker`", ("worker", "cpu"), set()),
        ("`image`", ("image",), set()),
        ("`vulkan`", ("vulkan",), required("worker")),
        ("`dev`", ("dev",), required("image") | {"hatchling"}),
    ],
)
def test_every_dependency_is_accounted_for(title: str, extras: tuple[str, ...], beside: set[str]) -> None:
    text = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    (section,) = (each for each in text.split("\n## ") if each.startswith(title))
    rows = re.findall(r"^\| ([a-zA-Z][\w, -]*) \|", section, re.M)
    named = {name.lower() for row in rows for name in row.split(", ")} - {"package"}
    assert named - {"triton"} == required(*extras) - beside


def said_by_code() -> set[str]:
    """What strings of services, workers and the wire say between their placeholders, where it is more than a word."""
    found: set[str] = set()
    for path in (each for root in ("services", "workers", "proto") for each in sorted((ROOT / root).rglob("*.py"))):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if "_pb2" not in path.name else ()
        strings = (each.value for each in nodes if isinstance(each, ast.Constant) and isinstance(each.value, str))
        found.update(each.strip(" .:") for each in strings)
    return {each for each in found if " " in each and len(each) > 8}


def test_quoted_messages_are_those_of_the_code() -> None:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.+?) \| ", text.partition("## Troubleshooting")[2], re.M)
    pieces = [piece.strip("` .:") for row in rows for piece in re.split("…|`, `", row)]
    said = said_by_code()
    assert len(rows) > 8
    assert [p for p in pieces if len(p) > 8 and not any(each in p or p in each for each in said)] == []
