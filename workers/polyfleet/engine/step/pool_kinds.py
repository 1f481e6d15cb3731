"""How plans write poolings down, and which of a sequence's rows they pool."""

from polyfleet.wire.requests import Pooling

POOL_KINDS = {Pooling.MEAN: 0, Pooling.LAST: 1, Pooling.CLS: 2}


def pools(pooling: Pooling, first: int, end: int, num_tokens: int) -> bool:
    """Whether the positions `first` … `end` - 1 of a sequence have some that are pooled."""
    return pooling is Pooling.MEAN or (end == num_tokens if pooling is Pooling.LAST else first == 0)
