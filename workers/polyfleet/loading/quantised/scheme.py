"""What `quantization_config` says of a folder: which tensors are a weight together, and what they stand for."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from polyfleet.kernels.weights.weight import Weight
from polyfleet.models.fields import Fields

if TYPE_CHECKING:  # what a folder states is read without torch
    from torch import Tensor

Parts = Mapping[str, "Tensor"]  # of a weight, by suffix
# Scales of what enters and leaves layers, or of a cache: activations are not rounded here.
OF_ACTIVATIONS = r".*\.(input|output|activation|[qkv])(_proj\.output)?_(scale|zero_point)(_ub|_inv)?"


@dataclass(frozen=True, slots=True)
class Scheme:
    """Tensors whose names are alike but for a suffix are a weight. `read` raises ValueError for what is wrong."""

    method: str
    marks: tuple[str, ...]  # suffixes of which one says that there is such a weight
    suffixes: tuple[str, ...]  # of all its tensors, longer ones before their own ends
    read: Callable[[str, Parts], Weight]  # by the weight's name
    ending: str = ""  # of the weight's name behind what its tensors share
    ignored: str = OF_ACTIVATIONS  # a pattern of tensors that say nothing of weights

    def weights(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """By name the tensors of each weight, by suffix."""
        present = set(names)
        found: dict[str, dict[str, str]] = {}
        for mark in self.marks:
            for name in present:
                stem = name.removesuffix(mark)
                if name.endswith(mark) and stem + self.ending not in found:
                    parts = {suffix: stem + suffix for suffix in self.suffixes if stem + suffix in present}
                    if len(parts) > 1 or "" not in self.suffixes:
                        found[stem + self.ending] = parts
        return found


@dataclass(frozen=True, slots=True)
class Group:
    """How the weights of some modules are quantised, in a folder that has several ways."""

    targets: tuple[str, ...]
    bits: int
    floating: bool
    strategy: str
    size: int  # of a group, in columns; 0: as there are scales
    tile: list[int] | None

    def names(self, module: str) -> bool:
        """Whether a target is this module, or a pattern of it."""
        return any(
            bool(re.match(target[3:], module)) if target.startswith("re:") else module == target
            for target in self.targets
        )


def part(parts: Parts, *suffixes: str) -> "Tensor":
    """The first of these that is there; ValueError where none is."""
    for suffix in suffixes:
        if suffix in parts:
            return parts[suffix]
    raise ValueError(f"has no tensor that ends in {' or '.join(suffixes)}")


def check_keys(section: Fields, known: Iterable[str]) -> None:
    """Raise ModelFileError for a key that was not read and is not `known`, unless its value says nothing."""
    for key, value in section.values.items():
        if key not in section.read and key not in known and value not in (None, False, "", [], {}):
            raise section.error(f"{key} = {value!r:.60} is not understood: it may change what the weights stand for")


def choice(section: Fields, key: str, known: tuple[Any, ...], default: Any = None) -> Any:
    """A value among those that are known; ModelFileError for another one."""
    value = section.values.get(key)
    section.read.add(key)
    value = default if value is None else value
    if value not in known:
        names = ", ".join(map(str, known))
        raise section.error(f"{key} {value!r} is not supported (supported: {names})")
    return value
