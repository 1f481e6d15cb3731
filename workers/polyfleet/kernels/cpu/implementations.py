"""What runs which op in the CPU library, in words."""

from collections.abc import Iterable, Mapping

from polyfleet.graph.kernel_graph import KernelGraph
from polyfleet.kernels.cpu import library
from polyfleet.kernels.cpu.footprint import MATRICES
from polyfleet.kernels.cpu.geometry import KINDS
from polyfleet.kernels.cpu.layouts import FORMATS, format_read
from polyfleet.kernels.weights.weight import WeightFormat, Weights


def implementations(instruction_set: str, formats: Iterable[WeightFormat]) -> Mapping[str, str]:
    """What runs each op; linears by the format of their weights."""
    names = sorted(kind.value for kind in KINDS)
    function = library.load().pf_linear_implementation
    forms = sorted(set(formats), key=list(WeightFormat).index)
    linears = (
        f"{form.value}: {function(instruction_set.encode(), FORMATS[format_read(form)]).decode()}" for form in forms
    )
    return {**dict.fromkeys(names, f"cpu {instruction_set}"), "linear": "cpu " + ", ".join(linears)}


def linear_formats(graph: KernelGraph, weights: Weights) -> frozenset[WeightFormat]:
    """Formats of the weights that linears read."""
    return frozenset(weights[name].format for op in graph.ops if op.kind in MATRICES for name in op.weights)
