"""What files' headers say of tensors, against what the configuration implies. No torch is imported here."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, prod
from pathlib import Path

from polyfleet.loading.quantised.scheme import Scheme
from polyfleet.models.architecture import TensorNames
from polyfleet.models.config import ModelConfig
from polyfleet.models.errors import ModelFileError
from polyfleet.models.mixture import MixtureConfig
from polyfleet.models.recorder import ONES
from polyfleet.models.registry import weight_shapes

MAX_HEADER_BYTES = 100_000_000  # as the format's own library allows
DENSE = ("F32", "F16", "BF16")  # safetensors' names of what is read as it is
LFS_POINTER = b"version https://git-lfs"
PICKLED = (b"\x80", b"PK\x03\x04")  # by itself, or as torch packs it
PART = re.compile(r"(.+)\[(\d+)\]")  # of a stack

Sides = Mapping[str, Sequence[int] | None]  # by the name of a tensor, or of what several stand for, whose are not known


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor as the header of the safetensors file `file` states it."""

    file: Path
    dtype: str
    shape: tuple[int, ...]


def read_beginning(path: Path) -> bytes:
    """A file's first bytes; raises ModelFileError for an empty one, and for Git's note of one that lies elsewhere."""
    try:
        with path.open("rb") as file:
            beginning = file.read(len(LFS_POINTER))
    except OSError as error:
        raise ModelFileError(f"{path}: can't be read ({error.strerror})") from None
    if not beginning:
        raise ModelFileError(f"{path}: the file is empty")
    if beginning == LFS_POINTER:
        raise ModelFileError(f"{path}: is Git's note of a large file, not the file: fetch it with `git lfs pull`")
    return beginning


def read_header(file: Path) -> dict[str, Entry]:
    """A safetensors file begins with 8 bytes, the length of its header, in JSON, which says how much follows.

    Raises ModelFileError where that is no header, or where the file ends before its tensors do.
    """
    beginning, size = read_beginning(file), file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if not 0 < length <= min(size - 8, MAX_HEADER_BYTES):
            if beginning.startswith(PICKLED):
                raise ModelFileError(f"{file}: is a pickle under another name, which could run code; use safetensors")
            raise ModelFileError(f"{file}: is truncated or no safetensors file")
        header = opened.read(length)
    try:
        stated = {name: each for name, each in json.loads(header).items() if name != "__metadata__"}
        entries = {name: Entry(file, each["dtype"], tuple(map(int, each["shape"]))) for name, each in stated.items()}
        end = 8 + length + max((each["data_offsets"][1] for each in stated.values()), default=0)
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError):
        raise ModelFileError(f"{file}: is no safetensors file") from None
    if end > size:
        raise ModelFileError(f"{file}: is truncated: its tensors end at byte {end}, the file has {size} bytes")
    return entries


def check_entries(
    path: str, config: ModelConfig, names: TensorNames, scheme: Scheme | None, entries: Mapping[str, Entry]
) -> None:
    """Raise ModelFileError for a folder's first tensor of a type that is not read, or as `check_tensors` does."""
    entries = {name: each for name, each in entries.items() if not names.ignores(name)}
    check_config(path, config, len(entries))
    quantised = scheme.weights(entries) if scheme else {}
    parts = {tensor for found in quantised.values() for tensor in found.values()}
    sides: dict[str, Sequence[int] | None] = dict.fromkeys(quantised)
    for name, each in entries.items():
        if name in parts or (scheme and re.fullmatch(scheme.ignored, name)):
            continue
        if each.dtype not in DENSE:
            known = ", ".join(DENSE)
            raise ModelFileError(
                f"{each.file}: tensor {name!r} has the unsupported type {each.dtype} (supported: {known})"
            )
        sides[name] = each.shape
    check_tensors(path, config, names, sides)


def check_config(path: str, config: ModelConfig, num_tensors: int) -> None:
    """Raise ModelFileError for sizes that contradict each other or the number of tensors in the file."""
    if config.num_layers > num_tensors:
        raise ModelFileError(f"{path}: states {config.num_layers} layers but holds only {num_tensors} tensors")
    if config.num_heads % config.num_kv_heads:
        raise ModelFileError(f"{path}: {config.num_heads} heads can't share {config.num_kv_heads} KV heads evenly")
    if config.head_dim % 2:
        raise ModelFileError(f"{path}: heads of {config.head_dim} dimensions can't be rotated, the number must be even")
    frequencies = (*config.inverse_frequencies, *config.short_frequencies)
    if not all(isfinite(frequency) and frequency > 0 for frequency in frequencies):
        raise ModelFileError(f"{path}: the rope settings give frequencies that are not finite numbers over 0")
    for token_id in config.end_token_ids:
        if not 0 <= token_id < config.vocabulary_size:
            raise ModelFileError(f"{path}: end token {token_id} is outside the vocabulary of {config.vocabulary_size}")


def check_tensors(path: str, config: ModelConfig, names: TensorNames, sides: Sides) -> None:
    """Raise ModelFileError for a tensor that holds more or fewer numbers than its weights, or for one that is missing.

    How weights lie in a tensor, and which tensors are of no use, is known once they are placed.
    """
    shapes, present, wrong = weight_shapes(config), set[str](), dict[str, str]()
    experts = config.route.experts if isinstance(config, MixtureConfig) else 1
    for name, found in sides.items():
        known = names.graph_names(name)
        stacks = [PART.sub(r"\1", each) for each in known]
        if not known or not all(each in shapes for each in stacks):
            continue
        present.update(known)
        split = experts if stacks != list(known) else config.segments if stacks == ["embedding"] else 1
        wanted = [(shapes[each][0] // split, shapes[each][1]) for each in stacks]
        if found is not None and prod(found) != sum(map(prod, wanted)):
            wrong.setdefault(stacks[0], _misshapen(name, known, found, wanted))
    for name in shapes:
        if name in wrong:
            raise ModelFileError(f"{path}: {wrong[name]}")
        parts = [f"{name}[{number}]" for number in range(experts)]
        gap = next((each for each in parts if each not in present), "") if present.intersection(parts) else name
        made = name.startswith(ONES) or (name == "score" and config.score_tokens)  # of none, or of others
        if gap and name not in present and not made:
            raise ModelFileError(f"{path}: the tensor for {gap!r} is missing")


def _misshapen(name: str, known: Sequence[str], found: Sequence[int], wanted: Sequence[tuple[int, int]]) -> str:
    """What a tensor is and what it should be; by the weight's own sides where it is one weight's."""
    if len(known) > 1 or len(found) > 2:
        numbers = sum(map(prod, wanted))
        return f"the tensor {name!r} is {_sides(found)}, the configuration says {numbers} numbers in all"
    matrix = (1,) * (2 - len(found)) + tuple(found)
    return f"the tensor for {known[0]!r} is {_sides(matrix)}, the configuration says {_sides(wanted[0])}"


def _sides(of: Sequence[int]) -> str:
    return " x ".join(map(str, of))
