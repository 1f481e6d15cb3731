"""The files that make the container images: the Dockerfile as instructions, and docker/'s scripts as modules."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
SMALL_IMAGES = ("gateway", "scheduler", "worker-cpu")  # those that no vendor's base is needed for


class Instruction(NamedTuple):
    """One instruction: FROM, RUN …, and what follows it, on one line."""

    word: str
    text: str


def instructions(dockerfile: str) -> list[Instruction]:
    """All of a Dockerfile, without comments."""
    lines = "\n".join(line for line in dockerfile.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", "", lines)
    pairs = (line.split(None, 1) for line in joined.splitlines() if line.strip())
    return [Instruction(word.upper(), text[0].strip() if text else "") for word, *text in pairs]


def stages(dockerfile: str) -> dict[str, list[Instruction]]:
    """The instructions of each stage by its name, from its FROM on."""
    found: dict[str, list[Instruction]] = {}
    for each in instructions(dockerfile):
        if each.word == "FROM":
            found[each.text.split()[-1]] = current = []
        if found:
            current.append(each)
    return found


def script(name: str) -> ModuleType:
    """A script of docker/ as a module."""
    module_name = f"polyfleet_docker_{name}"
    if module_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(module_name, DOCKER / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[module_name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[module_name]
