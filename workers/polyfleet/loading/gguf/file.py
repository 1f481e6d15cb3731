"""A GGUF file's header: metadata and tensor directory, read with every length checked against the file's size.

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The `gguf` package trusts the lengths it reads
and takes seconds over a vocabulary; this one refuses what does not fit and takes a tenth of a second.
"""

import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any

from polyfleet.kernels.weights.formats import WeightFormat, row_bytes
from polyfleet.models.errors import ModelFileError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4

FORMATS: Mapping[int, WeightFormat] = {  # ggml_type of ggml.h
    **{0: WeightFormat.F32, 1: WeightFormat.F16, 30: WeightFormat.BF16},
    **{2: WeightFormat.Q4_0, 3: WeightFormat.Q4_1, 6: WeightFormat.Q5_0, 7: WeightFormat.Q5_1, 8: WeightFormat.Q8_0},
    **{10: WeightFormat.Q2_K, 11: WeightFormat.Q3_K, 12: WeightFormat.Q4_K, 13: WeightFormat.Q5_K},
    **{14: WeightFormat.Q6_K, 15: WeightFormat.Q8_K, 34: WeightFormat.TQ1_0, 35: WeightFormat.TQ2_0},
    **{19: WeightFormat.IQ1_S, 29: WeightFormat.IQ1_M, 16: WeightFormat.IQ2_XXS, 17: WeightFormat.IQ2_XS},
    **{22: WeightFormat.IQ2_S, 18: WeightFormat.IQ3_XXS, 21: WeightFormat.IQ3_S},
    **{20: WeightFormat.IQ4_NL, 23: WeightFormat.IQ4_XS, 39: WeightFormat.MXFP4},
}
# Types that other tools write and this engine does not read, for the error message.
OTHER_FORMATS: Mapping[int, str] = {
    **{4: "Q4_2", 5: "Q4_3", 9: "Q8_1", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64"},
    **{31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 36: "IQ4_NL_4_4", 40: "NVFP4"},
}

# Private and writable, as torch wants memory to be, without setting aside memory for pages that nobody writes.
PRIVATE = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)

STRING, ARRAY, BOOL = 8, 9, 7
LENGTH = struct.Struct("<Q")  # of a string, in bytes
SCALARS: Mapping[int, str] = {  # value type -> struct code
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies: `rows` x `columns` of `format`, `size` bytes from `offset` of the mapped file `buffer`.

    The mapping is private: nothing written to it reaches the file.
    """

    buffer: mmap.mmap
    name: str
    format: WeightFormat
    rows: int
    columns: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A parsed header."""

    path: str
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]

    @property
    def sides(self) -> dict[str, tuple[int, int]]:
        """Rows and columns of each tensor, by its name."""
        return {name: (each.rows, each.columns) for name, each in self.tensors.items()}


def read_gguf(path: str) -> GgufFile:
    """Map and parse `path`; raises ModelFileError unless the header is sound and all tensors lie inside the file."""
    try:
        with open(path, "rb") as file:
            buffer = mmap.mmap(file.fileno(), 0, flags=PRIVATE)
    except ValueError:
        raise ModelFileError(f"{path}: the file is empty") from None
    except OSError as error:
        raise ModelFileError(f"{path}: can't be read ({error.strerror})") from None
    return _Header(path, buffer).parse()


class _Header:
    """A cursor over the header; each read checks that the bytes are there."""

    def __init__(self, path: str, buffer: mmap.mmap) -> None:
        self.path = path
        self.buffer = buffer
        self.position = 0
        self.readers: dict[int, Callable[[], Any]] = {STRING: self.string, ARRAY: self.array}
        self.readers.update({kind: self._scalar_reader(code) for kind, code in SCALARS.items()})

    def error(self, reason: str) -> ModelFileError:
        return ModelFileError(f"{self.path}: {reason}")

    def parse(self) -> GgufFile:
        if self.take(len(MAGIC)) != MAGIC:
            raise self.error("is not a GGUF file (its first bytes are not 'GGUF')")
        version = self.unpack("I")
        if version not in VERSIONS:
            raise self.error(f"GGUF version {version} is not supported (2 and 3 are, little-endian)")
        num_tensors, num_keys = self.unpack("Q"), self.unpack("Q")
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self.string()
            if key in metadata:
                raise self.error(f"metadata key {key!r} stands twice in the header")
            metadata[key] = self.value(self.unpack("I"))
        directory = [self.tensor() for _ in range(num_tensors)]
        return GgufFile(self.path, metadata, self.place(directory, self.alignment(metadata)))

    def alignment(self, metadata: Mapping[str, Any]) -> int:
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 8 or alignment % 8:
            raise self.error(f"general.alignment must be a multiple of 8, not {alignment!r}")
        return alignment

    def tensor(self) -> TensorInfo:
        """One directory entry; its offset still counts from the start of the data."""
        name = self.string()
        num_dimensions = self.unpack("I")
        if not 1 <= num_dimensions <= MAX_DIMENSIONS:
            raise self.error(f"tensor {name!r} has {num_dimensions} dimensions, 1 to {MAX_DIMENSIONS} are possible")
        shape = [self.unpack("Q") for _ in range(num_dimensions)]
        kind, offset = self.unpack("I"), self.unpack("Q")
        rows, columns = prod(shape[1:]), shape[0]
        if kind not in FORMATS:
            known = OTHER_FORMATS.get(kind, f"number {kind}")
            names = ", ".join(sorted(form.value for form in FORMATS.values()))
            raise self.error(f"tensor {name!r} has the unsupported type {known} (supported: {names})")
        try:
            size = rows * row_bytes(FORMATS[kind], columns)
        except ValueError as error:
            raise self.error(f"tensor {name!r}: {error}") from None
        return TensorInfo(self.buffer, name, FORMATS[kind], rows, columns, offset, size)

    def place(self, directory: list[TensorInfo], alignment: int) -> dict[str, TensorInfo]:
        """Make offsets absolute and check that each tensor lies inside the file."""
        start = -(-self.position // alignment) * alignment
        tensors: dict[str, TensorInfo] = {}
        for each in directory:
            end = start + each.offset + each.size
            if each.offset % alignment:
                raise self.error(f"tensor {each.name!r} is not aligned to {alignment} bytes")
            if end > len(self.buffer):
                raise self.error(
                    f"is truncated: tensor {each.name!r} ends at byte {end}, the file has {len(self.buffer)} bytes"
                )
            if each.name in tensors:
                raise self.error(f"tensor {each.name!r} stands twice in the header")
            tensors[each.name] = replace(each, offset=start + each.offset)
        placed = sorted(tensors.values(), key=lambda each: (each.offset, each.size))
        for one, other in pairwise(placed):
            if one.offset + one.size > other.offset:
                raise self.error(f"tensors {one.name!r} and {other.name!r} overlap")
        return tensors

    def take(self, size: int) -> bytes:
        end = self.position + size
        if end > len(self.buffer):
            raise self.error(f"is truncated: the header needs {end} bytes or more, the file has {len(self.buffer)}")
        data = self.buffer[self.position : end]
        self.position = end
        return data

    def unpack(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def string(self) -> str:
        (size,) = LENGTH.unpack(self.take(LENGTH.size))
        try:
            return self.take(size).decode()
        except UnicodeDecodeError:
            raise self.error(f"the header holds text that is not UTF-8 before byte {self.position}") from None

    def value(self, kind: int) -> Any:
        if kind not in self.readers:
            raise self.error(f"the header is corrupt: value type {kind} before byte {self.position}")
        return self.readers[kind]()

    def array(self) -> list[Any]:
        kind, length = self.unpack("I"), self.unpack("Q")
        if kind == STRING:
            return [self.string() for _ in range(length)]
        if kind not in SCALARS:
            raise self.error(f"the header is corrupt: array of value type {kind} before byte {self.position}")
        code = SCALARS[kind]
        data = self.take(length * struct.calcsize("<" + code))
        if kind == BOOL:
            return [byte != 0 for byte in data]
        return list(struct.unpack(f"<{length}{code}", data))

    def _scalar_reader(self, code: str) -> Callable[[], Any]:
        return lambda: self.unpack(code)
