"""The portable KV document: keys and values of a prompt's beginning on their way between engines.

docs/kv-layout.md has the format. Pure: bytes and numpy arrays. numpy has no bfloat16: such values are uint16 arrays
that hold their bits.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyfleet.graph.kernel_graph import PerToken
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
}
_INFINITY = {"float32": 0x7F80_0000, "float16": 0x7C00, "bfloat16": 0x7F80}  # bits; those of finite numbers are less

Array = NDArray[Any]
Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Whose keys and values: what two engines must agree on, and how one of them stores numbers."""

    model: str  # its fingerprint
    caches: tuple[PerToken, ...]
    dtype: str  # float32, float16 or bfloat16

    @property
    def token_bytes(self) -> int:
        """Of all caches."""
        return sum(each.sides * each.heads * each.width for each in self.caches) * DTYPES[self.dtype].itemsize

    @classmethod
    def of(cls, model: str, caches: Sequence[Array]) -> "KvLayout":
        """Of arrays [2, tokens, kv heads, width] as `Executor.export_blocks` gives them. ValueError for others."""
        names = {name for name, dtype in DTYPES.items() for each in caches if each.dtype == dtype}
        if len(names) != 1 or any(each.ndim != 4 or each.dtype != caches[0].dtype for each in caches):
            raise ValueError(
                "caches must be arrays [2, tokens, kv heads, width] of one dtype: float32, float16, uint16"
            )
        return cls(
            model, tuple(PerToken(each.shape[2], each.shape[3], each.shape[0] == 1) for each in caches), names.pop()
        )


@dataclass(frozen=True, slots=True)
class KvPrefix:
    """The beginning of a prompt, whole blocks of BLOCK_TOKENS, and its keys and values."""

    token_ids: tuple[int, ...]
    caches: tuple[Array, ...]  # of each cache [2 (keys after rotation, values), tokens, kv heads, width]


def pack(layout: KvLayout, prefix: KvPrefix, salt: bytes = b"") -> bytes:
    """The document; `salt` is the tenant's, as in `wire.hashing`. Raises ValueError where shapes don't fit."""
    num_tokens = len(prefix.token_ids)
    shapes = [(each.sides, num_tokens, each.heads, each.width) for each in layout.caches]
    if num_tokens % BLOCK_TOKENS or [each.shape for each in prefix.caches] != shapes:
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
    sizes = [each.sides * num_tokens * each.heads * each.width for each in theirs.caches]
    dtype = DTYPES[theirs.dtype]
    hashes_at = start + num_tokens * 4
    at = hashes_at + num_tokens // BLOCK_TOKENS * _HASH_BYTES
    end = at + sum(sizes) * dtype.itemsize
    if end != len(view):
        raise ValueError(f"the KV document has {len(view)} bytes, but its header means {end}")
    if blake2b(view[_PREAMBLE.size :], digest_size=_HASH_BYTES).digest() != _checksum(view):
        raise ValueError("the KV document's checksum is wrong: it was damaged on its way")
    token_ids = tuple(np.frombuffer(view[start:hashes_at], dtype="<u4").tolist())
    if view[hashes_at:at] != _hashes(layout, token_ids, salt):
        raise ValueError("the KV document's hashes are not those of its tokens for this tenant")
    caches = []
    for spec, size in zip(layout.caches, sizes, strict=True):
        numbers = np.frombuffer(view, dtype=dtype, count=size, offset=at)
        at += size * dtype.itemsize
        shape = (spec.sides, num_tokens, spec.heads, spec.width)
        require_finite(scan(numbers).largest, theirs.dtype)
        caches.append(converted(numbers, theirs.dtype, layout.dtype).reshape(shape))
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
    """Finite numbers in another dtype, rounded to the nearest, ties to even. ValueError unless they stay finite."""
    if dtype == wanted:
        return numbers
    wide: Array = (numbers.astype("<u4") << 16) if dtype == "bfloat16" else numbers.astype("<f4")
    result: Array
    if wanted == "bfloat16":
        bits = wide.view("<u4")
        result = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")
    else:
        with np.errstate(over="ignore"):
            result = wide.view("<f4").astype(DTYPES[wanted])
    if scan(result).largest >= _INFINITY[wanted]:
        raise ValueError(f"the KV document has numbers that are too large for {wanted}")
    return result


def require_finite(largest: int, dtype: str) -> None:
    """Raise ValueError unless numbers whose largest magnitude has these bits are."""
    if largest >= _INFINITY[dtype]:
        raise ValueError("the KV document has numbers that are not finite")
