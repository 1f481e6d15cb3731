"""What extras of pyproject.toml require."""

import importlib
import re
from typing import Any

OWN = re.compile(r"polyfleet\[([\w,-]+)\]")


def read(text: str) -> dict[str, Any]:
    """Parse TOML; Python 3.10 has no parser of its own, but its pip has."""
    try:
        parser = importlib.import_module("tomllib")
    except ImportError:
        parser = importlib.import_module("pip._vendor.tomli")
    project: dict[str, Any] = parser.loads(text)["project"]
    return project


def required(project: dict[str, Any], extras: list[str]) -> list[str]:
    """Each requirement once, with those of the extras that an extra names."""
    found = dict.fromkeys(project["dependencies"])
    waiting, seen = list(extras), set()
    while waiting:
        extra = waiting.pop(0)
        seen.add(extra)
        for line in project["optional-dependencies"][extra]:
            if own := OWN.fullmatch(line):
                waiting += [name for name in own[1].split(",") if name not in seen]
            else:
                found[line] = None
    return list(found)
