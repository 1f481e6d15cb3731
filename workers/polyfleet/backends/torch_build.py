"""Which torch is installed and what it was built for, read from its files: torch itself is not imported."""

import re
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ASSIGNMENT = re.compile(r"^(__version__|cuda|hip|xpu)\b[^=]*=\s*(.+?)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """Versions as torch/version.py states them; None: not built for it. `version` is empty without torch."""

    version: str = ""
    cuda: str | None = None
    hip: str | None = None
    xpu: str | None = None


def torch_build() -> TorchBuild:
    """The build that `import torch` would give in this interpreter."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return TorchBuild()
    try:
        return parse_version_file((Path(spec.origin).parent / "version.py").read_text())
    except OSError:
        return TorchBuild()


def parse_version_file(text: str) -> TorchBuild:
    """Read torch/version.py's assignments, annotated or not."""
    values = {name: value.strip("'\"") for name, value in ASSIGNMENT.findall(text)}

    def optional(name: str) -> str | None:
        value = values.get(name, "None")
        return None if value == "None" else value

    return TorchBuild(values.get("__version__", ""), optional("cuda"), optional("hip"), optional("xpu"))


def graph_class_exists(package: str, device_module: str, name: str) -> bool:
    """Whether torch.<device_module> has this class for graphs: of the loaded torch, else by the package's files.

    `package` brings the device module: torch itself or its extension.
    """
    loaded = sys.modules.get("torch") if package in sys.modules else None
    if loaded is not None:
        return hasattr(getattr(loaded, device_module, None), name)
    try:
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            return False
        text = (Path(spec.origin).parent / device_module / "graphs.py").read_text(encoding="utf-8")
    except (ImportError, ValueError, AttributeError, OSError):
        return False
    return re.search(rf"^class {name}\b", text, re.MULTILINE) is not None


def installed(module: str) -> bool:
    """Whether a top-level module could be imported, without importing it."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False
