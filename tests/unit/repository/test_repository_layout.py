"""Promises of the repository as a whole: one namespace, roots that meet in the protos, pinned versions, clean text."""

import ast
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import polyfleet

ROOT = Path(__file__).parents[3]
TEXT = {
    ".py",
    ".md",
    ".toml",
    ".yaml",
    ".yml",
    ".json",
    ".proto",
    ".lock",
    ".cpp",
    ".h",
    ".hpp",
    ".cc",
    ".c",
    ".txt",
    "",
}


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    return [ROOT / name for name in listed.split("\0") if name]


def tracked_texts() -> list[tuple[str, str]]:
    """Name and content of every tracked text file but this one, which has to spell out what it forbids."""
    paths = [path for path in tracked_files() if path.suffix in TEXT and path != Path(__file__) and path.is_file()]
    return [(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in paths]


def locked_lines() -> list[str]:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_namespace_has_no_file() -> None:
    assert polyfleet.__file__ is None
    roots = {Path(path).parent.name for path in polyfleet.__path__}
    assert roots == {"services", "workers", "proto"}


def test_no_root_has_an_init() -> None:
    assert list(ROOT.glob("*/polyfleet/__init__.py")) == []


def test_every_package_is_typed() -> None:
    packages = {path.parent for path in ROOT.glob("*/polyfleet/*/__init__.py")}
    assert [package for package in packages if not (package / "py.typed").exists()] == []


def test_generated_code_is_not_committed() -> None:
    assert [path.name for path in tracked_files() if re.search(r"_pb2(_grpc)?\.pyi?$", path.name)] == []


@pytest.mark.parametrize(
    "module",
    [
        "polyfleet.backends",
        "polyfleet.cli.main",
        "polyfleet.client",
        "polyfleet.placement.fleet",
        "polyfleet.serving.server",
        "polyfleet.wire.sampling",
    ],
)
def test_importing_is_light(module: str) -> None:
    script = f"import sys, {module}; print(sorted({{'torch', 'ray', 'numpy', 'transformers'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_commands_import_workers_inside_functions_only() -> None:
    workers = {f"polyfleet.{path.name}" for path in (ROOT / "workers" / "polyfleet").iterdir() if path.is_dir()}
    assert "polyfleet.engine" in workers
    found = []
    cli = ROOT / "services" / "polyfleet" / "cli"
    for path in (path for path in sorted(cli.rglob("*.py")) if path.parent.name != "simulated"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            found += [f"{path.name}: {name}" for name in names if ".".join(name.split(".")[:2]) in workers]
    assert found == []


def test_lock_pins_every_requirement_of_the_project() -> None:
    pinned = {canonical(line.split("==")[0]) for line in locked_lines()}
    names = {canonical(Requirement(text).name) for text in importlib.metadata.requires("polyfleet") or []}
    wanted = names - {"polyfleet"}
    assert {"torch", "ray", "grpcio", "ruff"} <= wanted
    assert wanted - pinned == set()


def test_lock_is_exact_and_names_no_vendor_package() -> None:
    lines = locked_lines()
    assert [line for line in lines if not re.match(r"^[A-Za-z0-9._-]+==[^\s]+( ; .+)?$", line)] == []
    assert [line for line in lines if re.match(r"(nvidia|cuda|triton)", line)] == []
    assert [line for line in lines if line.startswith("torch==")] == ["torch==2.13.0"]


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"/(?:work|root|home/\w+)/\w+", "a path of somebody's machine"),
        (r"\b(?:TODO|FIXME|XXX|HACK)\b", "work left undone"),
        (r"(?i)\bissues? #?\d+\b|\(#\d+\)", "a number of a tracker that readers don't have"),
        (r"https?://[^\s/]*(?:mirror|artifactory|nexus)[^\s]*", "a host of a package mirror"),
        (r"-----BEGIN [A-Z ]*PRIVATE KEY-----", "a secret"),
    ],
)
def test_texts_are_clean(pattern: str, why: str) -> None:
    found = [f"{name}: {match.group()}" for name, text in tracked_texts() for match in re.finditer(pattern, text)]
    assert found == [], why


def test_readme_begins_with_the_line_that_make_prints() -> None:
    first = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[0]
    assert re.search(r"`apt-get install .*\bmake\b.*\bgit\b.*\bpython3-venv\b.*`", first)
    script = "import runpy; print(runpy.run_path('tools/check_host.py')['apt_line']())"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"`{done.stdout.strip()}`" in first


def test_make_help_lists_every_target() -> None:
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    targets = set(re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)[0].split())
    listed = {line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")}
    assert targets - listed == set()
    assert "TORCH_INDEX=" in done.stdout
