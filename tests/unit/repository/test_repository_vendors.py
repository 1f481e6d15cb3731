"""No vendor is named in code outside the backends: the engine and the services ask for capabilities."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FAMILIES = (
    *("cuda", "rocm", "hygon", "ascend", "cambricon", "xpu", "mps", "vulkan"),
    *("hip", "npu", "mlu", "dcu", "hcu", "nvidia", "amd", "intel", "huawei", "apple"),
    *("nccl", "rccl", "hccl", "cncl", "xccl", "nvml", "amdsmi", "wgpu", "metal"),
)
# As a part of a name or text: "cuda:0", "torch_npu", "isCuda" and "CudaGraph", not "ships" or "amdahl".
WORD = re.compile(rf"(?i:{'|'.join(FAMILIES)})")
PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# Where a vendor may be named: a folder or file, and a function or assigned name in it (empty: everywhere), with why.
ALLOWED = {
    ("workers/polyfleet/backends/", ""): "the one place that knows vendors",
    ("workers/polyfleet/kernels/vulkan/", ""): "shaders for one programming interface",
    ("workers/polyfleet/kernels/triton/__init__.py", "WHERE"): "the devices for which Triton compiles and was tested",
    ("workers/polyfleet/kernels/triton/chaining.py", ""): "what Triton calls the module of one launch order",
    ("workers/polyfleet/kernels/triton/hopper", ""): "what Gluon calls the module of one architecture",
    ("workers/polyfleet/executors/vulkan.py", ""): "the executor of those shaders, named after them",
    (
        "workers/polyfleet/kernels/torch/batched.py",
        "prefer_steady_attention",
    ): "what torch calls its switch for all devices",
    (
        "workers/polyfleet/executors/ranks/one_shot.py",
        "",
    ): "what torch calls the memory that processes share, on any device",
    (
        "workers/polyfleet/executors/ranks/collectives.py",
        "LOOPBACK",
    ): "what libraries of collectives call their network's variable",
    ("workers/polyfleet/engine/choosing/executors.py", "KNOWN"): "the list of executors' names",
    ("workers/polyfleet/loading/quantised/methods.py", "HARMLESS"): "keys that files of other makers have",
    ("workers/polyfleet/conformance/report.py", "software_versions"): "packages whose versions a report lists",
    ("services/polyfleet/scheduler/config.py", "ACCELERATORS"): "the accelerators that a configuration may name",
}
HELP = {"help", "epilog", "short_help", "metavar"}  # what a command line says to people
Finding = tuple[str, int, str, str]  # file, line, enclosing name, word


def words(text: str) -> Iterator[str]:
    """The vendor words in a name or text."""
    yield from (part.lower() for part in PARTS.findall(text) if WORD.fullmatch(part))


def texts(node: ast.AST) -> Iterator[str]:
    """What one node says in code: constants, names, attributes, arguments, imports, definitions."""
    match node:
        case ast.Constant(value=str(value)):
            yield value
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
            yield name
        case ast.alias(name=name, asname=alias):
            yield from (name, alias or "")
        case ast.ImportFrom(module=str(module)):
            yield module
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name


def said_to_people(tree: ast.AST) -> set[int]:
    """Ids of the constants that are docstrings, or help and examples of a command line."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                found.add(id(first.value))
        if isinstance(node, ast.keyword) and node.arg in HELP:
            found.update(id(each) for each in ast.walk(node.value))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "examples":
            found.update(id(each) for each in ast.walk(node))
    return found


def vendors_named(source: str, file: str) -> Iterator[Finding]:
    """Every vendor word in the code of one file, with the top-level name that it stands in."""
    tree = ast.parse(source)
    skipped = said_to_people(tree)
    for statement in tree.body:
        names = [each for each in getattr(statement, "targets", []) if isinstance(each, ast.Name)]
        enclosing = getattr(statement, "name", names[0].id if names else "")
        for node in ast.walk(statement):
            if id(node) not in skipped:
                for text in texts(node):
                    yield from ((file, getattr(node, "lineno", 0), enclosing, word) for word in words(text))


def allowed(finding: Finding) -> tuple[str, str] | None:
    """The exception that covers a finding."""
    file, _, enclosing, _ = finding
    return next((key for key in ALLOWED if file.startswith(key[0]) and key[1] in ("", enclosing)), None)


@cache
def findings() -> list[Finding]:
    """All vendor words in the code of services and workers."""
    paths = sorted(path for root in ("services", "workers") for path in (ROOT / root).rglob("*.py"))
    return [
        each
        for path in paths
        if "_pb2" not in path.name
        for each in vendors_named(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix())
    ]


def test_no_vendor_is_named_outside_the_backends() -> None:
    found = [
        f"{file}:{line}: {word}"
        for file, line, enclosing, word in findings()
        if not allowed((file, line, enclosing, word))
    ]
    assert found == [], "ask polyfleet.backends for a capability instead"


def test_every_exception_is_needed() -> None:
    needed = {allowed(each) for each in findings()}
    unneeded = set(ALLOWED) - needed
    assert unneeded == set()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ('if device == "cuda:1": pass', ["cuda"]),
        ("torch.cuda.synchronize()", ["cuda"]),
        ("import torch_npu", ["npu"]),
        ("from torch import xpu as gpu", ["xpu"]),
        ("def is_rocm(hip_version): ...", ["rocm", "hip"]),
        ("class MpsGraph: ...", ["mps"]),
        ('text = f"uses {x} on NVIDIA"', ["nvidia"]),
        ("run(use_cudnn=True, mlu=1)", ["mlu"]),
        ('"""Docstring about CUDA."""', []),
        ('def f():\n    """Docstring about CUDA."""', []),
        ('option("--accelerator", help="Accelerator: cuda, rocm.")', []),
        ('command(epilog=examples("polyfleet backends set cuda"))', []),
        ("# a comment about ROCm", []),
        ('ships = chips = "the amdahl of champs, metallic"', []),
    ],
)
def test_the_check_finds_vendors_in_code_and_nothing_else(code: str, expected: list[str]) -> None:
    assert [word for _, _, _, word in vendors_named(code, "x.py")] == expected
