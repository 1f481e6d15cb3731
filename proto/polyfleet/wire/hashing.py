"""Chained hashes of token grains: how a prefix is named, on the worker (per block) and in placement (per 64 tokens)."""

from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b

PREFIX_GRAIN_TOKENS = 64
ROOT_HASH = b""


def grain_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """16-byte hash of one full grain behind `parent` (ROOT_HASH for the first); ids count as 32-bit little-endian."""
    ids = array("I", token_ids)
    if ids.itemsize != 4:  # pragma: no cover - no such platform is supported
        raise RuntimeError("array('I') is not 32 bits wide here")
    return blake2b(parent + ids.tobytes(), digest_size=16).digest()


def chain_hashes(token_ids: Sequence[int], grain: int) -> Iterator[bytes]:
    """The hash of each full grain of `grain` tokens, each chained to all before it; a partial tail has none."""
    parent = ROOT_HASH
    for start in range(0, len(token_ids) - grain + 1, grain):
        parent = grain_hash(parent, token_ids[start : start + grain])
        yield parent
