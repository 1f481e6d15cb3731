"""The portable KV document: keys and values of a prompt's beginning on their way between engines.

docs/kv-layout.md has the format. Pure: bytes and numpy arrays. numpy has no bfloat16: such values are uint16 arrays
that hold their bits. Arrays of int8 are rows of codes, each with its scale: see `kernels.int8_rows`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from math import prod
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyfleet.graph.kernel_graph import PerToken
from polyfleet.kernels.int8_rows import SCALE_BYTES, from_bfloat16, numbers_of, rows_of, scales_of, to_bfloat16
from polyfleet.kernels.scan import scan
from polyfleet.wire.hashing import chain_hashes, prefix_root

BLOCK_TOKENS = 16  # a document holds whole blocks of so many tokens, whatever the blocks of an engine hold
VERSION = 1

_MAGIC = b"PFKV\r\n\x1a\n"
_PREAMBLE = Struct("<8sII16s")  # magic, version, bytes of the header, checksum of all that follows
_HEADER_BYTES = 1 << 16  # at most
_HASH_BYTES = 16
DTYPES: Mapping[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),
    "int8": np.dtype("i1"),
}
_INFINITY = {"float32": 0x7F80_0000, "float16": 0x7C00, "bfloat16": 0x7F80}  # bits; those of finite numbers are less

_WIDENED: Mapping[str, Callable[[Any], Any]] = {"bfloat16": from_bfloat16, "int8": numbers_of}  # to float32

Array = NDArray[Any]
Buffer = bytes | bytearray | memoryview


class Joined(tuple[Array, ...]):
    """Arrays that lie one behind the other in `memory`, and fill it."""

    memory: memoryview

    @classmethod
    def of(cls, memory: memoryview, shapes: Sequence[tuple[int, ...]], dtype: np.dtype[Any]) -> "Joined":
        """Views of it. Raises ValueError where it has not just their bytes."""
        numbers, sizes = np.frombuffer(memory, dtype), [prod(each) for each in shapes]
        if len(numbers) != sum(sizes):
            raise ValueError(f"{memory.nbytes} bytes can't be {sum(sizes)} numbers of {dtype}")
        starts = accumulate(sizes, initial=0)
        parts = zip(starts, sizes, shapes, strict=False)
        made = cls(numbers[start : start + size].reshape(shape) for start, size, shape in parts)
        made.memory = memory
        return made


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Whose keys and values: what two engines must agree on, and how one of them stores numbers."""

    model: str  # its fingerprint
    caches: tuple[PerToken, ...]
    dtype: str  # float32, float16, bfloat16 or int8

    @property
    def token_bytes(self) -> int:
        """Of all caches."""
        return sum(map(prod, self.shapes(1))) * DTYPES[self.dtype].itemsize

    @property
    def scanned_bytes(self) -> int:
        """Of a number, where the largest magnitude tells whether all are finite; 0 where scales tell it."""
        return 0 if self.dtype == "int8" else DTYPES[self.dtype].itemsize

    def shapes(self, tokens: int) -> list[tuple[int, int, int, int]]:
        """Of each cache's array for so many tokens."""
        more = SCALE_BYTES if self.dtype == "int8" else 0
        return [(each.sides, tokens, each.heads, each.width + more) for each in self.caches]

    @classmethod
    def of(cls, model: str, caches: Sequence[Array]) -> "KvLayout":
        """Of arrays [2, tokens, kv heads, width] as `Executor.export_blocks` gives them. ValueError for others."""
        names = {name for name, dtype in DTYPES.items() for each in caches if each.dtype == dtype}
        if len(names) != 1 or any(each.ndim != 4 or each.dtype != caches[0].dtype for each in caches):
            raise ValueError(
                "caches must be arrays [2, tokens, kv heads, width] of one dtype: float32, float16, uint16, int8"
            )
        name = names.pop()
        less = SCALE_BYTES if name == "int8" else 0
        specs = (PerToken(each.shape[2], each.shape[3] - less, each.shape[0] == 1) for each in caches)
        return cls(model, tuple(specs), name)


@dataclass(frozen=True, slots=True)
class KvPrefix:
    """The beginning of a prompt, whole blocks of BLOCK_TOKENS, and its keys and values."""

    token_ids: tuple[int, ...]
    caches: tuple[Array, ...]  # of each cache [2 (keys after rotation, values), tokens, kv heads, width]


def pack(layout: KvLayout, prefix: KvPrefix, salt: bytes = b"") -> bytes:
    """The document; `salt` is the tenant's, as in `wire.hashing`. Raises ValueError where shapes don't fit."""
    num_tokens = len(prefix.token_ids)
    if num_tokens % BLOCK_TOKENS or [each.shape for each in prefix.caches] != layout.shapes(num_tokens):
        raise ValueError(f"{num_tokens} tokens or the shapes of their caches don't make whole blocks of this layout")
    caches = [_spec(each) for each in layout.caches]
    facts = {"model": layout.model, "dtype": layout.dtype, "tokens": num_tokens, "caches": caches}
    header = json.dumps(facts).encode()
    header += b" " * (-len(header) % 16)  # so that all arrays are aligned
    if len(header) > _HEADER_BYTES:
        raise ValueError(f"a header of {len(header)} bytes is longer than {_HEADER_BYTES}")
    dtype = DTYPES[layout.dtype]
    body: list[Any] = [header, np.array(prefix.token_ids, dtype="<u4"), _hashes(layout, prefix.token_ids, salt)]
    body += [np.ascontiguousarray(each, dtype=dtype).reshape(-1) for each in prefix.caches]
    digest = blake2b(digest_size=_HASH_BYTES)
    for part in body:
        digest.update(part)
    return b"".join([_PREAMBLE.pack(_MAGIC, VERSION, len(header), digest.digest()), *body])


def unpack(data: Buffer, layout: KvLayout, salt: bytes = b"") -> KvPrefix:
    """What a document holds, in the dtype of `layout`; arrays may be read-only views of `data`.

    All of it is checked, sizes before anything is allocated. Raises ValueError, one sentence, for what can't be taken.
    """
    view = memoryview(data).cast("B")
    header, start = _header(view)
    theirs, num_tokens = _facts(header)
    if theirs.model != layout.model:
        raise ValueError("the KV document is of another model, or another revision of it")
    if theirs.caches != layout.caches:
        raise ValueError("the KV document has caches of other shapes than this model's")
    shapes, dtype = theirs.shapes(num_tokens), DTYPES[theirs.dtype]
    hashes_at = start + num_tokens * 4
    at = hashes_at + num_tokens // BLOCK_TOKENS * _HASH_BYTES
    end = at + num_tokens * theirs.token_bytes
    if end != len(view):
        raise ValueError(f"the KV document has {len(view)} bytes, but its header means {end}")
    if blake2b(view[_PREAMBLE.size :], digest_size=_HASH_BYTES).digest() != _checksum(view):
        raise ValueError("the KV document's checksum is wrong: it was damaged on its way")
    token_ids = tuple(np.frombuffer(view[start:hashes_at], dtype="<u4").tolist())
    if view[hashes_at:at] != _hashes(layout, token_ids, salt):
        raise ValueError("the KV document's hashes are not those of its tokens for this tenant")
    caches = []
    for shape in shapes:
        numbers = np.frombuffer(view, dtype=dtype, count=prod(shape), offset=at).reshape(shape)
        at += numbers.nbytes
        require_finite([numbers], theirs.dtype)
        caches.append(converted(numbers, theirs.dtype, layout.dtype))
    return KvPrefix(token_ids, tuple(caches))


def _hashes(layout: KvLayout, token_ids: Sequence[int], salt: bytes) -> bytes:
    return b"".join(chain_hashes(token_ids, BLOCK_TOKENS, prefix_root(layout.model, salt)))


def _checksum(view: memoryview) -> bytes:
    checksum: bytes = _PREAMBLE.unpack_from(view)[3]
    return checksum


def _header(view: memoryview) -> tuple[Any, int]:
    """The header, parsed, and where it ends."""
    if len(view) < _PREAMBLE.size or view[: len(_MAGIC)] != _MAGIC:
        raise ValueError("this is no KV document")
    _, version, size, _ = _PREAMBLE.unpack_from(view)
    if version != VERSION:
        raise ValueError(f"the KV document has version {version}, but only {VERSION} can be read")
    end = _PREAMBLE.size + size
    if size > _HEADER_BYTES or size % 16 or end > len(view):
        raise ValueError(f"the KV document can't have a header of {size} bytes")
    try:
        return json.loads(bytes(view[_PREAMBLE.size : end]).decode()), end
    except (ValueError, RecursionError):
        raise ValueError("the KV document's header is not JSON") from None


def _facts(header: Any) -> tuple[KvLayout, int]:
    """The layout and the number of tokens that a header states."""
    if not isinstance(header, dict) or header.keys() != {"model", "dtype", "tokens", "caches"}:
        raise ValueError("the KV document's header must have model, dtype, tokens and caches")
    model, dtype, num_tokens, caches = (header[key] for key in ("model", "dtype", "tokens", "caches"))
    if not isinstance(model, str) or not isinstance(caches, list):
        raise ValueError("the KV document's model must be a string and its caches a list")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"the KV document's dtype must be one of {', '.join(DTYPES)}")
    if not _is_count(num_tokens) or num_tokens % BLOCK_TOKENS:
        raise ValueError(f"the KV document's tokens must be whole blocks of {BLOCK_TOKENS}")
    for each in caches:
        if not isinstance(each, dict) or each.keys() - {"latent"} != {"kv_heads", "width"} or not _are_sizes(each):
            raise ValueError("each of the KV document's caches must have kv_heads and width, both whole numbers")
    specs = (PerToken(each["kv_heads"], each["width"], "latent" in each) for each in caches)
    return KvLayout(model, tuple(specs), dtype), num_tokens


def _spec(cache: PerToken) -> Mapping[str, Any]:
    """A cache in the header."""
    return {"kv_heads": cache.heads, "width": cache.width, **({"latent": True} if cache.latent else {})}


def _are_sizes(spec: Mapping[str, Any]) -> bool:
    return _is_count(spec["kv_heads"]) and _is_count(spec["width"]) and spec.get("latent", True) is True


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def converted(numbers: Array, dtype: str, wanted: str) -> Array:
    """Finite numbers of a cache in another dtype, rounded to the nearest, ties to even.

    Raises ValueError unless they stay finite.
    """
    if dtype == wanted:
        return numbers
    wide = _WIDENED.get(dtype, lambda given: given.astype("<f4"))(numbers)
    if wanted == "int8":
        return rows_of(wide)
    with np.errstate(over="ignore"):
        result: Array = to_bfloat16(wide) if wanted == "bfloat16" else wide.astype(DTYPES[wanted])
    if scan(result).largest >= _INFINITY[wanted]:
        raise ValueError(f"the KV document has numbers that are too large for {wanted}")
    return result


def require_finite(caches: Sequence[Array], dtype: str, largest: int | None = None) -> None:
    """Raise ValueError unless all numbers are; `largest` are their largest magnitude's bits, where these are known."""
    if dtype == "int8":
        if any(scales_of(each).max(initial=0) >= _INFINITY["bfloat16"] for each in caches):
            raise ValueError("the KV document has scales that are negative or not finite")
        return
    if largest is None:
        largest = max((scan(each).largest for each in caches), default=0)
    if largest >= _INFINITY[dtype]:
        raise ValueError("the KV document has numbers that are not finite")
