"""Philox-4x32-10 against the known answers of its authors' distribution, and what a draw makes of it."""

import numpy as np
import pytest
from tests.support import sampling_oracle

from polyfleet.sampling.philox import philox, uniforms

# Random123's kat_vectors, philox 4x32 10: counter, key, output.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_known_answers(counter: str, key: str, answer: str) -> None:
    found = philox(np.array([words(counter)], dtype=np.uint64), np.array([words(key)], dtype=np.uint64))
    assert found.tolist() == [words(answer)]
    assert list(sampling_oracle.philox_words(tuple(words(counter)), tuple(words(key)))) == words(answer)


def test_uniforms_follow_the_documented_key_counter_and_bits() -> None:
    cases = [(0, 0, 0), (7, 0, 12), (7, 1, 12), (2**64 - 1, 15, 2**33 + 5), (0xDEADBEEF00000001, 3, 8191)]
    found = uniforms(*[list(column) for column in zip(*cases, strict=True)])
    assert found.tolist() == [sampling_oracle.uniform(*case) for case in cases]


def test_uniforms_are_uniform_and_below_one() -> None:
    found = uniforms([5] * 20_000, [0] * 20_000, range(20_000))
    assert found.min() >= 0
    assert found.max() < 1
    counts, _ = np.histogram(found, bins=20, range=(0, 1))
    chi_squared = float(((counts - 1000.0) ** 2 / 1000.0).sum())
    assert chi_squared < 43.8  # 19 degrees of freedom, p = 0.001; the numbers are fixed, so this never flickers


def test_streams_of_seeds_choices_and_positions_differ() -> None:
    found = uniforms([1, 2, 1, 1, 2**32], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0])
    assert len(set(found.tolist())) == 5


def test_no_draws() -> None:
    assert uniforms([], [], []).shape == (0,)
