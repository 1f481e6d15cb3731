"""Packages whose names are imported when they are first used: a process pays for those that it needs."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # type checkers take it for true; typing's own would cost more than this module
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def importing(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package, by the modules below polyfleet where its names are defined."""

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"polyfleet.{modules[name]}"), name)

    return find
