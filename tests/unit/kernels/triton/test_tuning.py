"""Which kernel products of quantised weights take, and how it is cut."""

import pytest

from polyfleet.kernels.triton.tuning import TUNING

BYTES, NIBBLES = 3, 4


def test_a_single_row_is_made_pairs_where_it_is_multiplied() -> None:
    for kind in (BYTES, NIBBLES):
        for outputs in (576, 4096, 128256):
            cut = TUNING["sm_90"].stream(kind, 1, outputs)
            assert cut is not None
            assert cut.rows == 1


@pytest.mark.parametrize(("kind", "rows", "outputs", "streamed"), [
    (NIBBLES, 2, 4096, True),
    (NIBBLES, 256, 4096, True),
    (BYTES, 2, 4096, False),
    (BYTES, 64, 6144, False),
    (BYTES, 64, 28672, True),
    (BYTES, 256, 28672, True),
    (BYTES, 256, 4096, True),
])  # fmt: skip
def test_rows_in_turns_are_streamed_where_that_is_as_fast(kind: int, rows: int, outputs: int, streamed: bool) -> None:
    cut = TUNING["sm_90"].stream(kind, rows, outputs)
    assert (cut is not None) == streamed
    assert cut is None or 1 < cut.rows <= 128
    assert TUNING["sm_80"].stream(kind, rows, outputs) is None
