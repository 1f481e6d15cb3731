"""The CPU library: whole steps of a KernelGraph in one call of C++ code, for the instruction set found when loaded."""

from typing import Any


def describe() -> dict[str, Any]:
    """What the library is here, for `polyfleet info`.

    `available`; without the library `reason`; else `instruction_sets` (best first), the `instruction_set` that is
    chosen, and `implementations` by op, linears for every weight format.
    """
    from polyfleet.kernels.cpu.implementations import implementations
    from polyfleet.kernels.cpu.library import LibraryUnavailable, instruction_sets
    from polyfleet.kernels.weights.weight import WeightFormat

    try:
        found = instruction_sets()
    except LibraryUnavailable as error:
        return {"available": False, "reason": str(error)}
    return {
        "available": True,
        "instruction_sets": list(found),
        "instruction_set": found[0],
        "implementations": dict(implementations(found[0], list(WeightFormat))),
    }
