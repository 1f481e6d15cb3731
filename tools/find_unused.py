"""Fail on names of services/, workers/ and proto/ that nothing but tests uses. Part of `make lint`.

Names are those of functions, classes, constants, methods and fields. One is used where code outside tests/ reads it,
beyond its own body and beyond what is unused itself; where a string is it, or says `module:name`; where a .proto has an
rpc of that name; where README or docs/ show it in code, or a page's template reads it. What a framework calls is used:
decorated functions, and what lies in a class that extends another package's. Names count, not what they belong to: of
two methods `close` the use of one is that of both, so that all that this finds is unused, but not all that is unused is
found.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
OURS = ("services", "workers", "proto")
USERS = (*OURS, "bench", "tools", "docker", "charts")
# "path:name", or a pattern of them -> why it stays though nothing but tests uses it.
ALLOWED: dict[str, str] = {
    "services/polyfleet/gateway/grpc/http2/server.py:Http2Server.add_registered_method_handlers": "made code calls it",
    "services/polyfleet/gateway/http/openai/replies.py:*": "fields of the JSON that clients read",
    "services/polyfleet/text/prompt_text.py:PromptText.render_chat": "what tests compare with other templates' texts",
    "workers/polyfleet/backends/protocol.py:DeviceInfo.total_memory_gb": "scripts that ask for devices read it",
    "workers/polyfleet/backends/protocol.py:KernelCapabilities.supports_flash_attention": "likewise",
    "workers/polyfleet/tuning/optimizer.py:BackendOptimizer.print_system_info": "likewise",
    "workers/polyfleet/tuning/optimizer.py:BackendOptimizer.save_config": "likewise, for load_config",
}
# Bases whose methods nobody calls unseen.
PLAIN_BASES = {"Protocol", "Generic", "NamedTuple", "TypedDict", "ABC", "object", "Struct", "Exception", "ValueError"}
PLAIN_BASES |= {"RuntimeError", "OSError", "KeyError", "TypeError", "LookupError", "str", "int", "float", "Mapping"}
# Decorators that hand what they decorate to nobody.
PLAIN_DECORATORS = {"property", "cached_property", "setter", "classmethod", "staticmethod", "cache", "lru_cache"}
PLAIN_DECORATORS |= {"contextmanager", "asynccontextmanager", "abstractmethod", "overload", "override", "final"}
PLAIN_DECORATORS |= {"dataclass", "unique", "wraps", "runtime_checkable", "total_ordering"}
ENTRY_POINT = re.compile(r"[\w.]+:(\w+)")
RPC = re.compile(r"^\s*rpc (\w+)", re.M)
CODE_IN_TEXT = re.compile(r"```.*?```|^ {4}.*?$|`[^`\n]+`", re.M | re.S)
CODE_IN_TEMPLATE = re.compile(r"\{[{%].*?[%}]\}")
WORD = re.compile(r"\w+")

Functions = (ast.FunctionDef, ast.AsyncFunctionDef)


class Definition(NamedTuple):
    """A name, and those around it: "Class.method"."""

    file: str
    path: str

    @property
    def name(self) -> str:
        """The name itself."""
        return self.path.rpartition(".")[2]


class Use(NamedTuple):
    """A name as code reads it, and the definitions that it does so in."""

    name: str
    within: tuple[Definition, ...]


def last_word(expression: ast.expr) -> str:
    """`Protocol` of `typing.Protocol[T]`, `command` of `main.command("x")`."""
    while isinstance(expression, ast.Call | ast.Subscript):
        expression = expression.func if isinstance(expression, ast.Call) else expression.value
    return expression.attr if isinstance(expression, ast.Attribute) else getattr(expression, "id", "")


class Reader(ast.NodeVisitor):
    """The definitions and uses of one file."""

    def __init__(self, file: str, extending: set[str]) -> None:
        """`extending`: the classes that extend one of another package."""
        self.definitions: list[Definition] = []
        self.uses: list[Use] = []
        self._file, self._extending = file, extending
        self._within: tuple[Definition, ...] = ()
        self._scopes: list[ast.AST] = []

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """A function; one within another is a part of it."""
        inner = any(isinstance(each, Functions) for each in self._scopes)
        for each in (*_arguments(node.args), node):
            self._use_annotation(each.returns if isinstance(each, Functions) else each.annotation)
        self._enter(node, [] if inner or self._handed_on(node) else [node.name])

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """A class."""
        self._enter(node, [] if self._handed_on(node) else [node.name])

    def visit_Assign(self, node: ast.Assign) -> None:
        """A constant of a module or class, or a variable."""
        targets = [each for target in node.targets for each in ast.walk(target)]
        names = [each.id for each in targets if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]
        if names != ["__all__"]:
            self._assigned(node, names)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Likewise, or a field."""
        self._use_annotation(node.annotation)
        self._assigned(node, [node.target.id] if isinstance(node.target, ast.Name) else [])

    def visit_Name(self, node: ast.Name) -> None:
        """A use, unless it is assigned to."""
        if isinstance(node.ctx, ast.Load):
            self._use(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Likewise."""
        if isinstance(node.ctx, ast.Load):
            self._use(node.attr)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """A string that is a name, or says where one is."""
        if isinstance(node.value, str):
            self._use(node.value)
            if found := ENTRY_POINT.fullmatch(node.value):
                self._use(found.group(1))

    def visit_MatchClass(self, node: ast.MatchClass) -> None:
        """A pattern reads fields."""
        for name in node.kwd_attrs:
            self._use(name)
        self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """An import is no use, but for one under another name."""
        for alias in node.names:
            if alias.asname:
                self._use(alias.name)

    def _use(self, name: str) -> None:
        self.uses.append(Use(name, self._within))

    def _use_annotation(self, annotation: ast.expr | None) -> None:
        for each in ast.walk(annotation) if annotation else ():
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                for name in WORD.findall(each.value):
                    self._use(name)

    def _handed_on(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
        decorated = {last_word(each) for each in node.decorator_list} - PLAIN_DECORATORS
        return bool(decorated) or self._in_extending_class()

    def _in_extending_class(self) -> bool:
        scope = self._scopes[-1] if self._scopes else None
        return isinstance(scope, ast.ClassDef) and scope.name in self._extending

    def _assigned(self, node: ast.Assign | ast.AnnAssign, names: list[str]) -> None:
        variable = bool(self._scopes) and not isinstance(self._scopes[-1], ast.ClassDef)
        within = self._within
        if not variable and not self._in_extending_class():
            self._define(names)
        self.generic_visit(node)
        self._within = within

    def _enter(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, names: list[str]) -> None:
        within = self._within
        self._define(names)
        self._scopes.append(node)
        self.generic_visit(node)
        self._scopes.pop()
        self._within = within

    def _define(self, names: list[str]) -> None:
        """What follows is within these names; those that Python itself looks for are none of ours."""
        around = [each.name for each in self._scopes if isinstance(each, ast.ClassDef | ast.FunctionDef)]
        defined = [Definition(self._file, ".".join([*around, name])) for name in names]
        self.definitions += [each for each in defined if not re.fullmatch(r"__\w+__|_\w*_|_+", each.name)]
        self._within = (*self._within, *defined)


def _arguments(node: ast.arguments) -> list[ast.arg]:
    rest = [each for each in (node.vararg, node.kwarg) if each]
    return [*node.posonlyargs, *node.args, *node.kwonlyargs, *rest]


def extending_classes(trees: Iterable[ast.Module]) -> set[str]:
    """Names of classes that extend one of another package, an enumeration among them, or one that does."""
    bases: dict[str, set[str]] = {}
    found: set[str] = set()
    for tree in trees:
        imports = [each for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)]
        others = [each for each in imports if not (each.module or "").startswith("polyfleet")]
        foreign = {alias.name for each in others for alias in each.names}
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                names = {last_word(each) for each in node.bases}
                qualified = {last_word(each) for each in node.bases if isinstance(each, ast.Attribute)}
                bases[node.name] = bases.get(node.name, set()) | names
                found |= {node.name} if (names & foreign | qualified) - PLAIN_BASES else set()
    found |= {name for name, of in bases.items() if of - bases.keys() - PLAIN_BASES}
    while more := {name for name, of in bases.items() if of & found} - found:
        found |= more
    return found


def read(root: Path, folders: Iterable[str]) -> list[Reader]:
    """All Python files of these folders but generated ones."""
    paths = sorted(path for folder in folders for path in (root / folder).rglob("*.py") if "_pb2" not in path.name)
    trees = {path.relative_to(root).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    extending = extending_classes(trees.values())
    readers = [Reader(file, extending) for file in trees]
    for reader, tree in zip(readers, trees.values(), strict=True):
        reader.visit(tree)
    return readers


def said_elsewhere(root: Path) -> Iterator[str]:
    """Names that texts, .proto files and the package's metadata say."""
    for path in (root / "README.md", *(root / "docs").rglob("*.md")):
        for code in CODE_IN_TEXT.findall(path.read_text(encoding="utf-8")):
            yield from WORD.findall(code)
    for path in (root / "services").rglob("*.html"):
        for code in CODE_IN_TEMPLATE.findall(path.read_text(encoding="utf-8")):
            yield from WORD.findall(code)
    for path in (root / "proto").rglob("*.proto"):
        yield from RPC.findall(path.read_text(encoding="utf-8"))
    yield from ENTRY_POINT.findall((root / "pyproject.toml").read_text(encoding="utf-8"))


def unused(readers: list[Reader], said: Iterable[str], allowed: Iterable[str]) -> tuple[list[str], set[str]]:
    """What nothing uses, as "path:name", and of `allowed` what is not needed."""
    definitions = {each for reader in readers for each in reader.definitions if each.file.startswith(OURS)}
    patterns = {each: {one for one in allowed if fnmatch(":".join(each), one)} for each in definitions}
    used, waiting = set(said), [use for reader in readers for use in reader.uses]
    before = -1
    while len(used) > before:
        before = len(used)
        dead = {each for each in definitions if each.name not in used and not patterns[each]}
        used |= {name for name, within in waiting if dead.isdisjoint(within)}
    found = {each for each in definitions if each.name not in used}
    needed = {pattern for each in found for pattern in patterns[each]}
    return sorted(":".join(each) for each in found if not patterns[each]), set(allowed) - needed


def main() -> int:
    """Print what is unused, and exceptions that nothing needs any more; the exit code says whether there was any."""
    found, unneeded = unused(read(ROOT, USERS), said_elsewhere(ROOT), ALLOWED)
    problems = [f"{each}: nothing but tests uses it" for each in found]
    problems += [f"{each}: is no exception any more" for each in sorted(unneeded)]
    print("\n".join(problems) or "names: all of them are used")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
