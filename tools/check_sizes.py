"""Fail when a file is over 400 lines or a function over 60, in Python and C++. Part of `make lint`.

The aim is 300 and 40; this check draws the line that nothing may cross without a reason given in EXCEPTIONS.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
FOLDERS = ("proto", "services", "workers", "tests", "bench", "tools", "docker", "deploy")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
PYTHON = (".py",)
CPP = (".c", ".cc", ".cpp", ".h", ".hpp", ".inl")
# "path" or "path:function" -> why it may be longer.
EXCEPTIONS: dict[str, str] = {
    "workers/polyfleet/kernels/triton/decode.py:decode_kernel": "one program of the device",
}

CPP_NOISE = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|^\s*#(?:\\\n|[^\n])*'
    r"|\b(?:alignas|__attribute__|__declspec|noexcept)\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)",
    re.S | re.M,
)
CPP_SCOPE = re.compile(r"\b(namespace|class|struct|union|enum|extern)\b[^;()=]*$")
CPP_FUNCTION = re.compile(r"([~\w]+)\s*\([^;]*\)[^;{}()=]*$")


class Excess(NamedTuple):
    """One thing that is too long; `name` is what EXCEPTIONS would call it."""

    name: str
    lines: int
    limit: int


def python_functions(source: str) -> Iterator[tuple[str, int]]:
    """Each function with its number of lines, from `def` to its end."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def cpp_functions(source: str) -> Iterator[tuple[str, int]]:
    """Each function at namespace or class level with its number of lines, from its name on."""
    text = CPP_NOISE.sub(lambda match: "\n" * match.group().count("\n"), source)
    depth, name, start, header_from = 0, "", 0, 0  # depth counts braces inside a body; scopes such as class don't count
    for match in re.finditer(r"[{};]", text):
        symbol, at = match.group(), match.start()
        header = text[header_from:at]
        header_from = at + 1
        if depth:
            depth += {"{": 1, "}": -1, ";": 0}[symbol]
            if depth == 0 and name:
                yield name, text.count("\n", start, at) + 1
        elif symbol == "{" and not CPP_SCOPE.search(header):
            function = CPP_FUNCTION.search(header)
            depth, name = 1, function.group(1) if function else ""  # no name: an initialiser
            start = at - len(header) + (function.start() if function else 0)


def excesses(path: Path, root: Path) -> Iterator[Excess]:
    """Everything in one file that is over a limit."""
    source = path.read_text(encoding="utf-8")
    relative = path.relative_to(root).as_posix()
    if (lines := source.count("\n")) > MAX_FILE_LINES:
        yield Excess(relative, lines, MAX_FILE_LINES)
    for name, length in python_functions(source) if path.suffix in PYTHON else cpp_functions(source):
        if length > MAX_FUNCTION_LINES:
            yield Excess(f"{relative}:{name}", length, MAX_FUNCTION_LINES)


def sources(root: Path) -> Iterator[Path]:
    """The files written by hand."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in PYTHON + CPP and "_pb2" not in path.name:
                yield path


def main() -> int:
    """Print what is too long, and exceptions that nothing needs any more; the exit code says whether there was any."""
    found = [each for path in sources(ROOT) for each in excesses(path, ROOT)]
    too_long = [each for each in found if each.name not in EXCEPTIONS]
    problems = [f"{each.name}: {each.lines} lines, at most {each.limit}" for each in too_long]
    problems += [f"{name}: is no exception any more" for name in EXCEPTIONS.keys() - {each.name for each in found}]
    print("\n".join(sorted(problems)) or f"sizes: {len(list(sources(ROOT)))} files within the limits")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
