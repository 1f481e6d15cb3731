"""The architectures that can be served, by the name that a ModelConfig carries."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.kernels.weights import Weights
from polyfleet.models import llama
from polyfleet.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Architecture:
    """How to record a model and which weights, of which shapes, it must have."""

    record: Callable[[ModelConfig, Weights], KernelGraph]
    weight_shapes: Callable[[ModelConfig], dict[str, tuple[int, int]]]


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(llama.record, llama.weight_shapes),
}


def record(config: ModelConfig, weights: Weights) -> KernelGraph:
    """The model's forward pass as a KernelGraph."""
    return ARCHITECTURES[config.architecture].record(config, weights)
