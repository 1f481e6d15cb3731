"""Chained hashes of token grains: how workers name prefixes (a grain is a block), KV documents (16 tokens), placement.

A chain begins at a root, which names everything beside tokens that makes two prefixes different: the model that
computed them and the tenant that they belong to. Chains of different roots have no hash in common.
"""

from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b

ROOT_HASH = b""  # of a chain that is nobody's in particular
PLACEMENT_GRAIN = 64  # tokens
MAX_GRAINS = 2048  # of one prompt


def prefix_root(fingerprint: str, salt: bytes = b"", adapter: str = "") -> bytes:
    """The root of the chains of one model and adapter (their fingerprints) and one cache salt.

    16 bytes, or ROOT_HASH without any of them.
    """
    salt = adapter_salt(salt, adapter)
    if not fingerprint and not salt:
        return ROOT_HASH
    model = fingerprint.encode()
    return blake2b(len(model).to_bytes(4, "little") + model + salt, digest_size=16, person=b"prefix root").digest()


def cache_salt(tenant: str) -> bytes:
    """The salt of a tenant's prefixes: the same at every gateway, and no name; empty for callers without keys."""
    return blake2b(tenant.encode(), digest_size=16, person=b"cache salt").digest() if tenant else b""


def adapter_salt(salt: bytes, adapter: str) -> bytes:
    """The salt of what an adapter (its fingerprint) computes for callers of `salt`; without an adapter the same."""
    return blake2b(salt + adapter.encode(), digest_size=16, person=b"adapter salt").digest() if adapter else salt


def grain_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """16-byte hash of one full grain behind `parent` (the root for the first); ids count as 32-bit little-endian."""
    ids = array("I", token_ids)
    if ids.itemsize != 4:  # pragma: no cover - no such platform is supported
        raise RuntimeError("array('I') is not 32 bits wide here")
    return blake2b(parent + ids.tobytes(), digest_size=16).digest()


def seen_by(parent: bytes, digests: Sequence[bytes]) -> bytes:
    """What a grain is chained to that holds tokens of these images: their ids alone don't tell them apart."""
    if not digests:
        return parent
    return blake2b(parent + b"".join(digests), digest_size=16, person=b"grain of images").digest()


def chain_hashes(token_ids: Sequence[int], grain: int, root: bytes = ROOT_HASH) -> Iterator[bytes]:
    """The hash of each full grain of `grain` tokens, each chained to all before it; a partial tail has none."""
    parent = root
    for start in range(0, len(token_ids) - grain + 1, grain):
        parent = grain_hash(parent, token_ids[start : start + grain])
        yield parent


def grain_numbers(token_ids: Sequence[int], root: bytes = ROOT_HASH) -> tuple[int, ...]:
    """64-bit chained hashes of the first full grains of PLACEMENT_GRAIN tokens, MAX_GRAINS at most.

    How placement names prefixes: short, since each gateway holds those of the whole fleet, and a collision costs no
    more than a worse choice.
    """
    ids = array("I", token_ids[: MAX_GRAINS * PLACEMENT_GRAIN]).tobytes()
    step, parent, numbers = 4 * PLACEMENT_GRAIN, root, []
    for start in range(0, len(ids) - step + 1, step):
        parent = blake2b(parent + ids[start : start + step], digest_size=8).digest()
        numbers.append(int.from_bytes(parent, "little"))
    return tuple(numbers)
