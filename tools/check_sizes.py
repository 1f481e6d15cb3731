"""Fail when a file is over 300 lines or a function over 40: what is written by hand in Python, C++, WGSL, the chart's
templates and YAML, shell, Dockerfiles and Makefiles. All lines count. Part of `make lint`.

What counts as a function: in Python from `def` to its end, in C++ and WGSL from the name to the closing brace, in the
chart a `define`, in shell a function, in a Dockerfile an instruction, in a Makefile a rule's recipe or a `define`.
"""

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
FOLDERS = ("proto", "services", "workers", "tests", "bench", "tools", "docker", "deploy", "charts", ".ci", ".github")
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 40
# "path" or "path:function" -> why it may be longer.
EXCEPTIONS: dict[str, str] = {
    "workers/polyfleet/kernels/triton/decode.py:decode_kernel": "one program of the device: it can't call another",
    "workers/polyfleet/kernels/triton/experts.py:experts_kernel": "one program of the device, as the others",
    "workers/polyfleet/kernels/triton/hopper.py:consume": "one warp group of a program of the device",
    "workers/polyfleet/kernels/triton/hopper_linear.py:hopper_linear_kernel": "one program of the device, as others",
    "workers/polyfleet/kernels/triton/latent.py:latent_kernel": "one program of the device, as the others",
    "workers/polyfleet/kernels/triton/linear.py:linear_kernel": "one program of the device: it can't call another",
    "workers/polyfleet/kernels/triton/prefill.py:prefill_kernel": "one program of the device: it can't call another",
    "workers/polyfleet/kernels/triton/routes.py:route_kernel": "one program of the device, as the others",
    "workers/polyfleet/kernels/vulkan/shaders/paged_attention.wgsl:main": "one program of the device, phase by phase",
}

STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)
Sized = Iterator[tuple[str, int]]  # names of functions, with their numbers of lines
BRACES_NOISE = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|^\s*#(?:\\\n|[^\n])*|@\w+(?:\([^()]*\))?'
    r"|\b(?:alignas|__attribute__|__declspec|noexcept)\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)",
    re.S | re.M,
)
BRACES_SCOPE = re.compile(r"\b(namespace|class|struct|union|enum|extern)\b[^;()=]*$")
BRACES_FUNCTION = re.compile(r"([~\w]+)\s*\([^;]*\)[^;{}()=]*$")
TEMPLATE_BLOCK = re.compile(r'\{\{-?\s*(?:(define)\s+"([^"]+)"|(if|with|range|block)\b|(end)\b)')
SHELL_FUNCTION = re.compile(r"^(?:function\s+)?([\w-]+)\s*\(\)\s*\{.*?^\}", re.M | re.S)
DOCKER_INSTRUCTION = re.compile(r"^([A-Z]+)\b(?:[^\n]*\\\n(?:[ \t]*#[^\n]*\n)*)*[^\n]*$", re.M)
MAKE_DEFINE = re.compile(r"^define[ \t]+(\S+)\n.*?^endef", re.M | re.S)
MAKE_RULE = re.compile(r"^([^\s#:=][^:=\n]*):(?!=)[^\n]*((?:\n\t[^\n]*|\n[ \t]*(?=\n\t))*)", re.M)


class Excess(NamedTuple):
    """One thing that is too long; `name` is what EXCEPTIONS would call it."""

    name: str
    lines: int
    limit: int


def python_functions(source: str) -> Sized:
    """Each function with its number of lines, from `def` to its end."""
    blocks: list[ast.AST] = [ast.parse(source)]
    for block in blocks:  # which grows: functions stand in statements, never in expressions
        if isinstance(block, ast.FunctionDef | ast.AsyncFunctionDef):
            yield block.name, (block.end_lineno or block.lineno) - block.lineno + 1
        blocks += [each for each in ast.iter_child_nodes(block) if isinstance(each, STATEMENTS)]


def braces_functions(source: str) -> Sized:
    """Each function of C++ or WGSL at namespace or class level with its number of lines, from its name on."""
    text = BRACES_NOISE.sub(lambda match: "\n" * match.group().count("\n"), source)
    depth, name, start, header_from = 0, "", 0, 0  # depth counts braces inside a body; scopes such as class don't count
    for match in re.finditer(r"[{};]", text):
        symbol, at = match.group(), match.start()
        header = text[header_from:at]
        header_from = at + 1
        if depth:
            depth += {"{": 1, "}": -1, ";": 0}[symbol]
            if depth == 0 and name:
                yield name, text.count("\n", start, at) + 1
        elif symbol == "{" and not BRACES_SCOPE.search(header):
            function = BRACES_FUNCTION.search(header)
            depth, name = 1, function.group(1) if function else ""  # no name: an initialiser
            start = at - len(header) + (function.start() if function else 0)


def template_functions(source: str) -> Sized:
    """Each `define` with its number of lines."""
    open_blocks: list[tuple[str, int]] = []  # name of a define, or nothing, and where it begins
    for match in TEMPLATE_BLOCK.finditer(source):
        if not match.group(4):
            open_blocks.append((match.group(2) or "", match.start()))
        elif open_blocks:
            name, start = open_blocks.pop()
            if name:
                yield name, source.count("\n", start, match.end()) + 1


def _matches(source: str, pattern: re.Pattern[str]) -> Sized:
    for match in pattern.finditer(source):
        yield match.group(1), match.group().count("\n") + 1


def shell_functions(source: str) -> Sized:
    """Each function of a shell script, whose closing brace begins a line."""
    return _matches(source, SHELL_FUNCTION)


def docker_instructions(source: str) -> Sized:
    """Each instruction of a Dockerfile with the lines that continue it."""
    return _matches(source, DOCKER_INSTRUCTION)


def make_recipes(source: str) -> Sized:
    """Each rule of a Makefile with its recipe, and each `define`."""
    yield from _matches(source, MAKE_DEFINE)
    yield from _matches(MAKE_DEFINE.sub("", source), MAKE_RULE)


def _none(source: str) -> Sized:
    return iter(())


KINDS: dict[str, Callable[[str], Sized]] = {
    **dict.fromkeys((".py",), python_functions),
    **dict.fromkeys((".c", ".cc", ".cpp", ".h", ".hpp", ".inl", ".wgsl"), braces_functions),
    **dict.fromkeys((".tpl", ".yaml", ".yml"), template_functions),
    **dict.fromkeys((".sh", ".bash", "#!"), shell_functions),
    **dict.fromkeys((".mk", "Makefile"), make_recipes),
    **dict.fromkeys((".dockerfile", "Dockerfile", "Containerfile"), docker_instructions),
    **dict.fromkeys((".toml", ".ini"), _none),
}


def kind_of(path: Path) -> str:
    """The key in KINDS of a file; empty: it is none of these, or generated."""
    if "_pb2" in path.name or path.name == "requirements.lock":
        return ""
    for key in (path.suffix, path.name, path.name.partition(".")[0]):
        if key in KINDS:
            return key
    if not path.suffix and path.read_bytes()[:2] == b"#!":
        return "#!"
    return ""


def excesses(path: Path, root: Path) -> Iterator[Excess]:
    """Everything in one file that is over a limit."""
    source = path.read_text(encoding="utf-8")
    relative = path.relative_to(root).as_posix()
    if (lines := len(source.splitlines())) > MAX_FILE_LINES:
        yield Excess(relative, lines, MAX_FILE_LINES)
    for name, length in KINDS[kind_of(path)](source):
        if length > MAX_FUNCTION_LINES:
            yield Excess(f"{relative}:{name}", length, MAX_FUNCTION_LINES)


def sources(root: Path) -> Iterator[Path]:
    """The files written by hand."""
    paths: Iterable[Path] = (*root.iterdir(), *(each for folder in FOLDERS for each in (root / folder).rglob("*")))
    yield from sorted(path for path in paths if path.is_file() and kind_of(path))


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
