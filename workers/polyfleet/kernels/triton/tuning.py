"""Sizes that differ by architecture and nothing else does: tiles, warps, stages. The kernels are the same source."""

from dataclasses import dataclass
from functools import cache

import torch


@dataclass(frozen=True, slots=True)
class Launch:
    """How one kernel is cut."""

    tile: int  # positions of the context at once
    warps: int
    stages: int  # loads of the context under way at once
    rows: int = 16  # of queries at once


@dataclass(frozen=True, slots=True)
class Tuning:
    """Of one architecture."""

    programs: int  # of decode attention in all: the context is split until there are as many
    most_splits: int
    decode: Launch
    prefill: Launch
    short_prefill: Launch  # of steps with few rows


TUNING = {
    "sm_80": Tuning(200, 32, Launch(64, 4, 3), Launch(64, 4, 3, 128), Launch(64, 4, 3, 64)),
    "sm_90": Tuning(200, 32, Launch(64, 4, 5), Launch(64, 4, 5, 64), Launch(64, 4, 5, 64)),
    "gfx90a": Tuning(220, 32, Launch(32, 4, 1), Launch(32, 4, 1, 128), Launch(32, 4, 1, 64)),
    "gfx942": Tuning(304, 32, Launch(64, 4, 1), Launch(64, 4, 1, 128), Launch(64, 4, 1, 64)),
}
SHORT_PREFILL = 1024  # rows
UNKNOWN = TUNING["sm_80"]


@cache
def architecture(device: torch.device) -> str:
    """sm_90, gfx942 …; empty on a CPU, where kernels are interpreted."""
    if device.type == "cpu":
        return ""
    properties = torch.get_device_module(device).get_device_properties(device)
    name = getattr(properties, "gcnArchName", "")
    return name.partition(":")[0] if name.startswith("gfx") else f"sm_{properties.major}{properties.minor}"


def tuning(device: torch.device) -> Tuning:
    """The device's; for one that nobody tuned, what runs anywhere."""
    return TUNING.get(architecture(device), UNKNOWN)
