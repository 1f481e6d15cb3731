"""What an architecture says of itself: where it is found, how its files state it, and how it is recorded."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.models.config import ModelConfig
from polyfleet.models.fields import Fields
from polyfleet.models.gguf_keys import GgufKeys
from polyfleet.models.recorder import Recorder


@dataclass(frozen=True, slots=True)
class TensorNames:
    """How one kind of file names the weights of a graph, and how they lie there.

    Names go without `.weight` and, unless a bias is a weight of its own, `.bias`. A name that stands for some weights
    (`"q k v"`) has their rows one behind the other; of stacks of experts (`"experts.gate experts.up"`) in each expert.
    `{}` stands for an expert's number, and a weight's name that ends in `[{}]` for its part of a stack.
    """

    names: Mapping[str, str]  # of the file -> of the graph
    layer_prefix: str  # "blk." of "blk.0.attn_q"
    layer_names: Mapping[str, str]  # the same within a layer
    ignored: Collection[str] = ()  # patterns of what the configuration implies
    interleaved: bool = False  # whether pairs that turn are neighbours (2i, 2i + 1), not (i, i + half)
    norm_offset: float = 0.0  # what the weights of norms leave out
    rates: Collection[str] = ()  # weights of the graph that lie as -exp(weight)
    optional: str = ""  # what some files leave out before names
    turned_stacks: bool = False  # whether stacks lie columns first
    taking_turns: bool = False  # whether columns of a gate and an up take turns there; else side by side
    qkv_by_heads: bool = False  # whether "q k v" lie by KV heads: a head's queries, its key, its value
    turned: Collection[str] = ()  # the first weights of matrices that lie columns first
    outer: Mapping[str, str] = field(default_factory=dict)  # beginnings of names, and what stands for them

    def graph_names(self, name: str) -> tuple[str, ...]:
        """Of a tensor's weights; none for a tensor that is not known."""
        name = self._inner(name)
        stem, _, kind = name.rpartition(".")
        suffix = {"weight": "", "bias": ".bias"}.get(kind)
        if suffix is None or re.sub(rf"{self._layers}\d+\.", "", name) in self.layer_names:
            stem, suffix = name, ""
        prefix, known = "", self.names.get(stem) or self.names.get(self.optional + stem)
        if known is None and (match := re.fullmatch(rf"{self._layers}(\d+)\.(.+)", stem)):
            prefix, known = f"layers.{match[1]}.", self._of_layer(match[2])
        return tuple(f"{prefix}{each}{suffix}" for each in (known or "").split())

    def _inner(self, name: str) -> str:
        """A name without what surrounds the model."""
        for beginning, inner in self.outer.items():
            if name.startswith(beginning):
                return inner + name.removeprefix(beginning)
        return name

    def _of_layer(self, stem: str) -> str | None:
        known = self.layer_names.get(stem)
        if known is None and (number := re.search(r"(?<=\.)\d+(?=\.|$)", stem)):
            known = self.layer_names.get(stem[: number.start()] + "{}" + stem[number.end() :])
            known = known and known.format(number[0])
        return known

    def of_expert(self, stack: str, part: str, number: int) -> str:
        """What an expert's matrix, of a stack's tensor the weight `part` of the graph, is called where it lies alone.

        Without `.weight`; empty where it never does.
        """
        stem, wanted = stack.removesuffix(".weight"), f"{part.split('.', 2)[-1]}[{{}}]"
        beginnings = [stem.removesuffix(each) for each in self.layer_names if stem.endswith(f".{each}")]
        alone = [name for name, each in self.layer_names.items() if each == wanted]
        return beginnings[0] + alone[0].format(number) if beginnings and alone else ""

    @property
    def _layers(self) -> str:
        """A pattern of `layer_prefix`."""
        return f"(?:{re.escape(self.optional)})?{re.escape(self.layer_prefix.removeprefix(self.optional))}"

    def layer(self, name: str) -> int:
        """Of a tensor; -1: of none."""
        match = re.match(rf"{self._layers}(\d+)\.", self._inner(name))
        return int(match[1]) if match else -1

    def ignores(self, name: str) -> bool:
        """Whether a tensor may be left out."""
        return any(re.fullmatch(pattern, name) for pattern in self.ignored)


@dataclass(frozen=True, slots=True)
class Architecture:
    """One family of models. Readers leave out its name and what stands in other files: the loader knows them."""

    name: str
    title: str  # as its makers write it
    classes: tuple[str, ...]  # `architectures` of config.json, or names that others gave to the same
    model_types: tuple[str, ...]  # of config.json, which count where no class is named
    gguf: tuple[str, ...]  # `general.architecture`
    read_folder: Callable[[Fields], ModelConfig]
    read_gguf: Callable[[GgufKeys], ModelConfig]
    record: Callable[[Any, Recorder], KernelGraph]
    folder_names: TensorNames
    gguf_names: TensorNames
    ranks: bool = False  # whether it is a cross encoder, which a GGUF file's tensors tell
    sparse: bool = False  # whether it is a mixture of experts, which a GGUF file's architecture may not say
    written_as: tuple[str, ...] = ()  # classes of another architecture that transformers writes beside its model_types
    notes: str = ""  # for its users
