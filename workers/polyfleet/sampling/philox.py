"""Philox-4x32-10: the counter-based random numbers behind every draw (Salmon et al., "Parallel random numbers: as easy
as 1, 2, 3", SC 2011).

The uniform of one draw is a function of (seed, choice, position) and of nothing else:

    key      = (seed's low 32 bits, seed's high 32 bits)
    counter  = (position's low 32 bits, position's high 32 bits, choice, 0)
    a, b, …  = the four output words;  u = ((a >> 5) * 2^26 + (b >> 6)) / 2^53, in [0, 1)

The choice stands in the counter and not in the key, so that no two (seed, choice) pairs share a stream.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Words = NDArray[np.uint64]  # 32-bit words in 64-bit lanes, so that products keep their high halves

ROUNDS = 10
MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
WEYL = np.array([[0x9E3779B9], [0xBB67AE85]], dtype=np.uint64)  # key increments: golden ratio, sqrt(3) - 1
STEPS = np.arange(ROUNDS, dtype=np.uint64)[:, None, None] * WEYL
MASK = np.uint64(0xFFFFFFFF)
WORD = np.uint64(32)


def philox(counter: Words, key: Words) -> Words:
    """Ten rounds over many counters at once: counter [n, 4] and key [n, 2] give words [n, 4], all below 2^32."""
    even, odd, keys = (np.ascontiguousarray(each) for each in (counter.T[::2], counter.T[1::2], key.T))
    for mixed in (keys + STEPS) & MASK:
        product = MULTIPLIERS * even
        even = (product >> WORD)[::-1] ^ odd
        even ^= mixed
        product &= MASK
        odd = product[::-1]
    return np.stack((even[0], odd[0], even[1], odd[1]), axis=-1)


def uniforms(seeds: ArrayLike, choices: ArrayLike, positions: ArrayLike) -> NDArray[np.float64]:
    """One number in [0, 1) for each (seed, choice, position), as the module's docstring defines it."""
    seed, choice, position = (np.asarray(each, dtype=np.uint64) for each in (seeds, choices, positions))
    counter = np.array((position & MASK, position >> WORD, choice, np.zeros_like(choice))).T
    words = philox(counter, np.array((seed & MASK, seed >> WORD)).T)
    high, low = words[:, 0] >> np.uint64(5), words[:, 1] >> np.uint64(6)
    uniform: NDArray[np.float64] = (high * 2.0**26 + low) / 2.0**53
    return uniform
