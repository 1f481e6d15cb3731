"""Environments of the libraries: for each of Python's a virtual one, for all of Node's one folder."""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PATIENCE_SECONDS = 1200.0


class NotInstalled(Exception):
    """A library can't be had; the message says why."""


@dataclass(frozen=True)
class Library:
    """One of Python's, whose script stands in `libraries`, or one of Node's, in `node`."""

    title: str
    script: str
    packages: tuple[str, ...]

    @property
    def in_node(self) -> bool:
        """Whether Node runs it."""
        return self.script.endswith(".mjs")


LIBRARIES: Mapping[str, Library] = {
    "openai": Library("openai", "openai.py", ("openai", "pydantic")),
    "anthropic": Library("anthropic", "anthropic.py", ("anthropic", "pydantic")),
    "litellm": Library("litellm", "litellm.py", ("litellm",)),
    "langchain": Library("langchain", "langchain.py", ("langchain-openai", "langchain-anthropic")),
    "llama_index": Library(
        "llama_index", "llama_index.py", ("llama-index-llms-openai-like", "llama-index-embeddings-openai-like")
    ),
    "instructor": Library("instructor", "instructor.py", ("instructor",)),
    "node-openai": Library("openai, Node", "openai.mjs", ("openai", "zod")),
    "node-anthropic": Library("anthropic, Node", "anthropic.mjs", ("@anthropic-ai/sdk", "zod")),
    "node-langchain": Library(
        "LangChain, Node", "langchain.mjs", ("@langchain/openai", "@langchain/anthropic", "@langchain/core", "zod")
    ),
    "node-ai": Library(
        "AI SDK", "ai.mjs", ("ai", "@ai-sdk/openai-compatible", "@ai-sdk/openai", "@ai-sdk/anthropic", "zod")
    ),
}


def command(library: Library, into: Path) -> list[str]:
    """The beginning of a command that tries a library, which is installed below `into`. Raises NotInstalled."""
    if not library.in_node:
        script = Path(library.script).stem
        return [str(_python(library, into / script)), "-m", f"bench.clients.libraries.{script}"]
    folder = into / "node"
    _node(library, folder)
    for path in (HERE / "node").glob("*.mjs"):  # from where it looks for its libraries
        shutil.copy(path, folder / path.name)
    return ["node", str(folder / library.script)]


def version(library: Library, into: Path) -> str:
    """Of a library that is installed."""
    name = library.packages[0]
    if library.in_node:
        return _said(["node", "-p", f"require('{into}/node/node_modules/{name}/package.json').version"])
    python = into / Path(library.script).stem / "bin" / "python"
    return _said([str(python), "-c", f"import importlib.metadata as m; print(m.version('{name}'))"])


def _python(library: Library, folder: Path) -> Path:
    python = folder / "bin" / "python"
    if not python.exists():
        _said([sys.executable, "-m", "venv", str(folder)])
    _said([str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *library.packages])
    return python


def _node(library: Library, folder: Path) -> None:
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise NotInstalled("node or npm is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    missing = [each for each in library.packages if not (folder / "node_modules" / each).exists()]
    if missing:
        _said(["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", *missing])


def _said(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(str(error)) from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise NotInstalled(f"{command[0]} failed: {lines[-1]}")
    return done.stdout.strip()
