"""The portable KV document: round trips, conversions, and everything that must be refused."""

import json
import struct
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from polyfleet.graph.kernel_graph import PerToken
from polyfleet.kernels.cached import CODES, loaded, stored
from polyfleet.kvcache.portable import BLOCK_TOKENS, KvLayout, KvPrefix, pack, unpack
from polyfleet.wire.hashing import chain_hashes, prefix_root

TORCH = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "int8": CODES}
FLOATS = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}
DTYPES = {**FLOATS, "int8": np.int8}
MODEL = "0123456789abcdef0123456789abcdef"
LAYOUT = KvLayout(MODEL, (PerToken(2, 4), PerToken(1, 8), PerToken(1, 8, latent=True)), "float16")


def numbers(values: torch.Tensor) -> NDArray[Any]:
    """A tensor as engines give it: bfloat16 as its bits."""
    bits: NDArray[Any] = values.view(torch.uint16).numpy() if values.dtype == torch.bfloat16 else values.numpy()
    return bits


def prefix_of(layout: KvLayout, num_tokens: int, seed: int = 0, scale: float = 1.0) -> KvPrefix:
    random = torch.Generator().manual_seed(seed)
    shapes = [(each.sides, num_tokens, each.heads, each.width) for each in layout.caches]
    caches = [torch.randn(shape, generator=random).mul(scale) for shape in shapes]
    held = (numbers(stored(each, torch.empty(0, dtype=TORCH[layout.dtype]))) for each in caches)
    return KvPrefix(tuple(range(3 + seed, 3 + seed + num_tokens)), tuple(held))


def document(layout: KvLayout = LAYOUT, num_tokens: int = 16) -> bytes:
    return pack(layout, prefix_of(layout, num_tokens), b"tenant")


def sealed(header: bytes, payload: bytes, version: int = 1) -> bytes:
    """A document written by hand, with a right checksum."""
    checksum = blake2b(header + payload, digest_size=16).digest()
    return struct.pack("<8sII16s", b"PFKV\r\n\x1a\n", version, len(header), checksum) + header + payload


def padded(facts: Any) -> bytes:
    header = facts if isinstance(facts, bytes) else json.dumps(facts).encode()
    return header + b" " * (-len(header) % 16)


def parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The header and the payload of a document."""
    (size,) = struct.unpack_from("<I", data, 12)
    facts: dict[str, Any] = json.loads(data[32 : 32 + size])
    return facts, data[32 + size :]


@given(
    caches=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 12)), min_size=1, max_size=3),
    dtype=st.sampled_from(sorted(DTYPES)),
    blocks=st.integers(0, 4),
    salt=st.binary(max_size=16),
    model=st.text(max_size=12),
)
def test_what_was_packed_comes_out(
    caches: list[tuple[int, int]], dtype: str, blocks: int, salt: bytes, model: str
) -> None:
    layout = KvLayout(model, tuple(PerToken(*each) for each in caches), dtype)
    prefix = prefix_of(layout, blocks * BLOCK_TOKENS, seed=blocks)
    result = unpack(pack(layout, prefix, salt), layout, salt)
    assert result.token_ids == prefix.token_ids
    for before, after in zip(prefix.caches, result.caches, strict=True):
        assert after.dtype == DTYPES[dtype]
        assert np.array_equal(before, after)
    assert KvLayout.of(model, result.caches) == layout


def test_the_bytes_are_those_of_the_document() -> None:
    layout = KvLayout(MODEL, (PerToken(1, 2),), "float32")
    keys_and_values = np.arange(64, dtype=np.float32).reshape(2, 16, 1, 2)
    prefix = KvPrefix(tuple(range(100, 116)), (keys_and_values,))
    facts = {"model": MODEL, "dtype": "float32", "tokens": 16, "caches": [{"kv_heads": 1, "width": 2}]}
    (grain,) = chain_hashes(prefix.token_ids, 16, prefix_root(MODEL, b"salt"))
    payload = struct.pack("<16I", *range(100, 116)) + grain + struct.pack("<64f", *range(64))
    assert pack(layout, prefix, b"salt") == sealed(padded(facts), payload)


def test_the_salt_is_not_in_the_document() -> None:
    assert b"tenant" not in document()


def floats(rows: NDArray[Any]) -> torch.Tensor:
    """What rows of codes stand for."""
    return loaded(torch.from_numpy(rows.copy()), torch.float32)


@given(
    mine=st.sampled_from(sorted(DTYPES)),
    theirs=st.sampled_from(sorted(DTYPES)),
    seed=st.integers(0, 100),
    scale=st.sampled_from([1e-6, 1e-3, 1.0, 1e3]),
)
def test_other_dtypes_are_rounded_to_the_nearest(mine: str, theirs: str, seed: int, scale: float) -> None:
    sent, taken = KvLayout(MODEL, LAYOUT.caches, mine), KvLayout(MODEL, LAYOUT.caches, theirs)
    prefix = prefix_of(sent, 16, seed, scale)
    result = unpack(pack(sent, prefix), taken)
    for before, after in zip(prefix.caches, result.caches, strict=True):
        tensor = floats(before) if mine == "int8" else torch.from_numpy(before)
        exact = tensor.view(torch.bfloat16) if mine == "bfloat16" else tensor
        assert np.array_equal(after, numbers(stored(exact, torch.empty(0, dtype=TORCH[theirs]))))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_a_way_through_float32_changes_nothing(dtype: str) -> None:
    layout, wide = KvLayout(MODEL, LAYOUT.caches, dtype), KvLayout(MODEL, LAYOUT.caches, "float32")
    prefix = prefix_of(layout, 32)
    there = unpack(pack(layout, prefix), wide)
    back = unpack(pack(wide, there), layout)
    assert all(np.array_equal(before, after) for before, after in zip(prefix.caches, back.caches, strict=True))


def test_numbers_that_another_dtype_does_not_hold_are_refused() -> None:
    wide = KvLayout(MODEL, (PerToken(1, 2),), "float32")
    for number, dtype in ((65520.0, "float16"), (-3.4e38, "float16"), (3.4e38, "bfloat16")):
        data = pack(wide, KvPrefix(tuple(range(16)), (np.full((2, 16, 1, 2), number, dtype=np.float32),)))
        with pytest.raises(ValueError, match=f"too large for {dtype}"):
            unpack(data, KvLayout(MODEL, wide.caches, dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_not_finite_are_refused(dtype: str, bad: float) -> None:
    layout = KvLayout(MODEL, LAYOUT.caches, dtype)
    prefix = prefix_of(layout, 16)
    prefix.caches[1][1, 15, 0, 7] = numbers(torch.tensor([bad]).to(TORCH[dtype]))[0]
    with pytest.raises(ValueError, match="not finite"):
        unpack(pack(layout, prefix), layout)


@pytest.mark.parametrize("bits", [0x7FC0, 0x7F80, 0xFF80, 0xBF80, 0x8000], ids=["nan", "inf", "-inf", "-1", "-0"])
def test_scales_that_are_not_finite_or_negative_are_refused(bits: int) -> None:
    layout = KvLayout(MODEL, LAYOUT.caches, "int8")
    prefix = prefix_of(layout, 16)
    prefix.caches[1][1, 15, 0, -2:] = np.array([bits], "<u2").view(np.int8)
    for wanted in ("int8", "float16"):
        with pytest.raises(ValueError, match="scales that are negative or not finite"):
            unpack(pack(layout, prefix), KvLayout(MODEL, LAYOUT.caches, wanted))


def test_codes_take_half_of_what_halves_do() -> None:
    wide, narrow = (KvLayout(MODEL, (PerToken(8, 128),), dtype) for dtype in ("float16", "int8"))
    assert (wide.token_bytes, narrow.token_bytes) == (2 * 8 * 256, 2 * 8 * 130)
    assert narrow.shapes(32) == [(2, 32, 8, 130)]


@pytest.mark.parametrize("mask", [0x01, 0x20, 0xFF])
def test_every_flipped_byte_is_refused(mask: int) -> None:
    data = bytearray(document())
    unpack(data, LAYOUT, b"tenant")
    for at in range(len(data)):
        data[at] ^= mask
        with pytest.raises(ValueError, match="KV document"):
            unpack(data, LAYOUT, b"tenant")
        data[at] ^= mask


def test_every_truncation_and_any_trailing_byte_is_refused() -> None:
    data = document()
    for end in range(len(data)):
        with pytest.raises(ValueError, match="KV document"):
            unpack(data[:end], LAYOUT, b"tenant")
    with pytest.raises(ValueError, match="its header means"):
        unpack(data + b"\0", LAYOUT, b"tenant")


@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    for data in (noise, document()[:32] + noise, sealed(padded(noise), b""), sealed(b"", noise)):
        with pytest.raises(ValueError, match="KV document"):
            unpack(data, LAYOUT, b"tenant")


REFUSED: dict[str, tuple[KvLayout, bytes, str]] = {
    "other model": (KvLayout("other", LAYOUT.caches, "float16"), b"tenant", "another model"),
    "other heads": (KvLayout(MODEL, (PerToken(4, 4), PerToken(1, 8)), "float16"), b"tenant", "other shapes"),
    "other width": (KvLayout(MODEL, (PerToken(2, 4), PerToken(1, 4)), "float16"), b"tenant", "other shapes"),
    "fewer caches": (KvLayout(MODEL, LAYOUT.caches[:1], "float16"), b"tenant", "other shapes"),
    "other tenant": (LAYOUT, b"somebody else", "for this tenant"),
    "no tenant": (LAYOUT, b"", "for this tenant"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_expected_is_refused(name: str) -> None:
    layout, salt, reason = REFUSED[name]
    with pytest.raises(ValueError, match=reason):
        unpack(document(), layout, salt)


LIES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "more tokens": (lambda facts: {**facts, "tokens": 32}, "its header means"),
    "very many tokens": (lambda facts: {**facts, "tokens": 16 * 10**30}, "its header means"),
    "fewer tokens": (lambda facts: {**facts, "tokens": 0}, "its header means"),
    "half a block": (lambda facts: {**facts, "tokens": 8}, "whole blocks of 16"),
    "negative": (lambda facts: {**facts, "tokens": -16}, "whole blocks of 16"),
    "a fraction": (lambda facts: {**facts, "tokens": 16.0}, "whole blocks of 16"),
    "a truth": (lambda facts: {**facts, "tokens": True}, "whole blocks of 16"),
    "wider numbers": (lambda facts: {**facts, "dtype": "float32"}, "its header means"),
    "codes": (lambda facts: {**facts, "dtype": "int8"}, "its header means"),
    "unknown numbers": (lambda facts: {**facts, "dtype": "float8_e4m3"}, "dtype must be one of"),
    "numbers in a list": (lambda facts: {**facts, "dtype": ["float16"]}, "dtype must be one of"),
    "a model in a list": (lambda facts: {**facts, "model": [MODEL]}, "must be a string"),
    "caches by number": (lambda facts: {**facts, "caches": 2}, "caches a list"),
    "a cache by number": (lambda facts: {**facts, "caches": [2, 4]}, "kv_heads and width"),
    "a negative cache": (lambda facts: {**facts, "caches": [{"kv_heads": -2, "width": -4}]}, "kv_heads and width"),
    "an unknown key": (lambda facts: {**facts, "windows": 1}, "must have model"),
    "a key too few": (lambda facts: {key: facts[key] for key in ("model", "dtype", "tokens")}, "must have model"),
    "a list": (lambda facts: [facts], "must have model"),
    "no JSON": (lambda facts: b"{", "not JSON"),
    "no text": (lambda facts: b"\xff", "not JSON"),
    "deep": (lambda facts: b"[" * 60_000, "not JSON"),
    "a long number": (lambda facts: b"1" * 60_000, "not JSON"),
    "too long": (lambda facts: json.dumps(facts).encode() + b" " * 2**16, "can't have a header"),
}


@pytest.mark.parametrize("name", LIES)
def test_headers_that_lie_are_refused(name: str) -> None:
    lie, reason = LIES[name]
    facts, payload = parts(document())
    with pytest.raises(ValueError, match=reason):
        unpack(sealed(padded(lie(facts)), payload), LAYOUT, b"tenant")


@pytest.mark.parametrize("version", [0, 2, 2**32 - 1])
def test_other_versions_are_refused(version: int) -> None:
    facts, payload = parts(document())
    with pytest.raises(ValueError, match=f"version {version}"):
        unpack(sealed(padded(facts), payload, version), LAYOUT, b"tenant")


def test_tokens_that_are_not_those_of_the_hashes_are_refused() -> None:
    facts, payload = parts(document())
    with pytest.raises(ValueError, match="not those of its tokens"):
        unpack(sealed(padded(facts), struct.pack("<I", 99) + payload[4:]), LAYOUT, b"tenant")


@pytest.mark.parametrize("caches", [(), (np.zeros((2, 16, 1, 4)),), (np.zeros((2, 16, 4), np.float32),)])
def test_arrays_that_are_no_caches_have_no_layout(caches: tuple[NDArray[Any], ...]) -> None:
    with pytest.raises(ValueError, match="caches must be arrays"):
        KvLayout.of(MODEL, caches)


def test_shapes_that_do_not_fit_are_not_packed() -> None:
    prefix = prefix_of(LAYOUT, 16)
    for wrong in (
        KvPrefix(prefix.token_ids[:-1], tuple(each[:, :-1] for each in prefix.caches)),
        KvPrefix(prefix.token_ids, prefix.caches[:1]),
        KvPrefix(prefix.token_ids, tuple(each[:, :, :, :2] for each in prefix.caches)),
    ):
        with pytest.raises(ValueError, match="whole blocks of this layout"):
            pack(LAYOUT, wrong)
