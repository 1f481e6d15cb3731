"""Sizes that differ by architecture and nothing else does: tiles, warps, stages. The kernels are the same source."""

from dataclasses import dataclass, replace
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
class Cut:
    """How a product of few rows is cut."""

    rows: int  # at most
    block: int  # outputs of a program
    step: int  # words of weights at once
    warps: int
    stages: int
    programs: int = 128  # the columns are split until there are as many,
    long: int = 4096  # where a row has more columns than this,
    most: int = 4  # into so many parts

    def splits(self, tiles: int, columns: int) -> int:
        """Parts of a row's columns."""
        return max(1, min(self.most, self.programs // tiles)) if columns > self.long else 1

    def share(self, outputs: int, columns: int) -> int:
        """Columns of a program, at most."""
        return -(-columns // self.splits(-(-outputs // self.block), columns))


@dataclass(frozen=True, slots=True)
class Stream:
    """A product that `hopper_linear` takes, or does not; a cut for one row makes that pairs itself."""

    rows: int  # at most
    cut: Cut | None
    outputs: int = 0  # at least,
    columns: int = 0  # and these

    def takes(self, rows: int, outputs: int, columns: int) -> bool:
        """Whether it is meant."""
        return rows <= self.rows and outputs >= self.outputs and columns >= self.columns


@dataclass(frozen=True, slots=True)
class Tuning:
    """Of one architecture."""

    programs: int  # of decode attention in all: the context is split until there are as many
    most_splits: int
    decode: Launch
    prefill: Launch
    short_prefill: Launch  # of steps with few rows
    products: tuple[tuple[Cut, ...], ...]  # by kind (see `codes`); those for fewer rows first
    experts: tuple[Cut, ...]  # by pairs of rows with each expert: for twice as many at most as there are in the mean
    latent: Launch
    halves: tuple[tuple[Cut, ...], ...] = ()  # likewise, of products with silu_mul behind; empty: as others
    alone: Cut | None = None  # of small dense products of a single row, which reads them whole; None: as of others
    ahead: bool = False  # weights of small dense products are fetched while the kernel before goes on
    bytes: bool = False  # the matrix unit multiplies fp8: rows are made pairs where weights have a scale a row
    assembly: bool = False  # words of codes become bfloat16 by PTX
    narrow: int = 0  # rows up to which steps over dense weights are narrowed (see `graph.narrow`); 0: none is
    chained: bool = False  # a kernel may be launched before the one before it has ended
    streams: tuple[tuple[Stream, ...], ...] = ()  # of bytes, of halves of them, the first that fits; empty: as others
    hopper: Launch | None = None  # of prompts by `hopper`; None: by `prefill`

    @property
    def most_rows(self) -> int:
        """Of dense products."""
        return self.products[0][-1].rows

    def cut(self, kind: int, rows: int, *, silu: bool, wide: bool = False) -> Cut:
        """For a number of rows that some cut has; `wide`: rows in float32, of which there is room for half as many."""
        cuts = self.halves if silu and self.halves else self.products
        found = next(cut for cut in cuts[kind] if cut.rows >= rows)
        return replace(found, stages=min(found.stages, WIDE_STAGES)) if wide else found

    def stream(self, kind: int, rows: int, outputs: int, columns: int) -> Cut | None:
        """For `hopper_linear`; None where the other kernel is as fast, or alone can hold what a program has."""
        for each in self.streams[kind - 3] if self.streams else ():
            if each.takes(rows, outputs, columns):
                held = kind == 4 or rows == 1
                return None if each.cut is None or (held and each.cut.share(outputs, columns) > HELD) else each.cut
        return None


WIDE_STAGES = 2
HELD = 8192  # columns of which shared memory has room for scales, and for a row's pairs
CODES_80 = (Cut(32, 32, 64, 2, 3, 256, 0), Cut(128, 32, 16, 2, 2, 256, 0))
CODES_GFX = (Cut(32, 32, 16, 2, 1, 256, 0), Cut(128, 32, 16, 4, 1, 256, 0))
EXPERTS_80 = (Cut(16, 64, 64, 4, 4), Cut(32, 64, 64, 4, 4), Cut(64, 128, 64, 8, 3), Cut(128, 128, 32, 8, 3))
EXPERTS_90 = (Cut(16, 64, 128, 4, 4), Cut(32, 128, 64, 4, 4), Cut(64, 128, 64, 8, 4), Cut(128, 256, 64, 8, 4))
EXPERTS_GFX = (Cut(16, 64, 64, 4, 1), Cut(32, 64, 64, 4, 1), Cut(64, 128, 32, 4, 1), Cut(128, 128, 32, 4, 1))
FP8_WIDE = Cut(128, 64, 32, 4, 3, 256, 0)
BYTES_90 = (Cut(16, 64, 256, 4, 4, 256, 2048), Cut(64, 64, 128, 4, 8, 128, 2048), Cut(128, 128, 128, 8, 4, 256, 2048))
NIBBLES_90 = (Cut(32, 64, 0, 4, 4, 256, 0), Cut(64, 128, 0, 8, 4, 128, 0), Cut(128, 64, 0, 4, 3, 256, 0))
WIDE = 2**14  # outputs from which on few rows of fp8 are streamed, and more of int4 are a program's
STREAMS_90 = (
    (
        Stream(1, Cut(1, 128, 0, 8, 4, 256, 0, 8), outputs=WIDE),
        Stream(1, Cut(1, 128, 0, 4, 6, 256, 0)),
        Stream(16, Cut(16, 128, 0, 8, 6, 256, 0), outputs=WIDE),
        Stream(32, Cut(32, 128, 0, 8, 4, 256, 0), outputs=WIDE),
        Stream(64, Cut(64, 128, 0, 8, 3, 256, 0), outputs=WIDE),
        Stream(64, None),
        Stream(128, None, outputs=WIDE),
        Stream(128, None, columns=8192),
        Stream(256, Cut(64, 128, 0, 8, 4, 128, 0, 1)),
    ),
    (
        Stream(1, Cut(1, 128, 0, 8, 4, 256, 0, 8), columns=8192),
        Stream(1, Cut(1, 128, 0, 4, 3, 256, 0)),
        Stream(16, Cut(16, 128, 0, 8, 4, 256, 0, 8)),
        Stream(32, Cut(32, 128, 0, 4, 2, 256, 0), outputs=WIDE),
        Stream(32, Cut(32, 64, 0, 4, 3, 256, 0)),
        Stream(128, Cut(64, 64, 0, 4, 2, 256, 0)),
        Stream(256, Cut(64, 128, 0, 8, 3, 128, 0), columns=8192),
        Stream(256, Cut(64, 128, 0, 8, 3, 128, 0, 1)),
    ),
)
INT4_90 = (Cut(32, 64, 64, 2, 3, 256, 0), Cut(64, 128, 32, 4, 3, 256, 0), Cut(128, 128, 16, 8, 3, 256, 0))
TUNING = {
    "sm_80": Tuning(
        *(200, 32, Launch(64, 4, 3), Launch(64, 4, 3, 128), Launch(64, 4, 3, 64)),
        products=((Cut(128, 64, 64, 4, 4),), CODES_80, CODES_80),
        experts=EXPERTS_80,
        latent=Launch(32, 8, 2, 32),
    ),
    "sm_90": Tuning(
        *(200, 32, Launch(128, 4, 2), Launch(64, 4, 5, 64), Launch(64, 4, 5, 64)),
        products=(
            (Cut(16, 64, 128, 4, 6, 128, 2048), Cut(64, 64, 128, 4, 5, 128, 2048), Cut(128, 64, 64, 4, 8)),
            (Cut(32, 32, 64, 2, 4, 256, 0), Cut(64, 128, 64, 8, 3, 256, 0), FP8_WIDE),
            INT4_90,
            BYTES_90,
            NIBBLES_90,
        ),
        experts=EXPERTS_90,
        latent=Launch(64, 8, 2, 64),
        halves=(
            (Cut(16, 64, 128, 4, 5), Cut(32, 64, 128, 4, 4), Cut(64, 128, 64, 8, 5), Cut(128, 128, 64, 4, 6)),
            (Cut(16, 64, 64, 2, 3, 256, 0), Cut(32, 128, 64, 4, 3, 256, 0), Cut(64, 128, 64, 8, 3, 256, 0), FP8_WIDE),
            INT4_90,
            (Cut(16, 128, 128, 4, 5), Cut(128, 128, 128, 8, 4)),
            NIBBLES_90,
        ),
        bytes=True,
        streams=STREAMS_90,
        assembly=True,
        narrow=64,
        chained=True,
        alone=Cut(1, 8, 1, 4, 1),
        ahead=True,
        hopper=Launch(128, 4, 2, 128),
    ),
    "gfx90a": Tuning(
        *(220, 32, Launch(32, 4, 1), Launch(32, 4, 1, 128), Launch(32, 4, 1, 64)),
        products=((Cut(128, 64, 64, 4, 1),), CODES_GFX, CODES_GFX),
        experts=EXPERTS_GFX,
        latent=Launch(16, 4, 1, 16),
    ),
    "gfx942": Tuning(
        *(304, 32, Launch(64, 4, 1), Launch(64, 4, 1, 128), Launch(64, 4, 1, 64)),
        products=((Cut(128, 64, 64, 4, 1),), CODES_GFX, CODES_GFX),
        experts=EXPERTS_GFX,
        latent=Launch(16, 4, 1, 16),
    ),
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
