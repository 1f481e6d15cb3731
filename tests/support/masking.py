"""Masks as tests think of them, a truth value for each token of each row, made into what samplers take, and back."""

import numpy as np
from numpy.typing import NDArray

from polyfleet.sampling.arrays import Bools
from polyfleet.sampling.masks import BARRED, Masks


def packed(allowed: Bools) -> NDArray[np.int32]:
    """[..., ceil(V / 32)] the sets of these tokens [..., V], with every bit behind the last token set."""
    missing = -allowed.shape[-1] % 32
    filled = np.concatenate((allowed, np.ones((*allowed.shape[:-1], missing), dtype=bool)), axis=-1)
    return np.packbits(filled, axis=-1, bitorder="little").view(np.int32)


def sparse(allowed: Bools) -> Masks:
    """Masks of the rows of [S, V] that leave something out: sets, or single tokens where these are few."""
    left_out = {row: np.flatnonzero(~mask).tolist() for row, mask in enumerate(allowed) if not mask.all()}
    few = {row: dict.fromkeys(ids, BARRED) for row, ids in left_out.items() if len(ids) < 8}
    return Masks.of({row: packed(allowed[row]) for row in left_out.keys() - few.keys()}, few)


def dense(masks: Masks, rows: int, vocabulary: int) -> Bools:
    """[S, V] which tokens each row may take."""
    allowed = np.ones((rows, vocabulary), dtype=bool)
    for row, ceiling in zip(masks.rows, masks.ceilings(vocabulary), strict=True):
        allowed[row] = ceiling > BARRED
    allowed[masks.biased_rows, masks.biased_ids] = masks.biases > BARRED
    return allowed
