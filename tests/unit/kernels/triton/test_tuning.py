"""Which kernel products of quantised weights take, and how it is cut."""

import pytest

from polyfleet.kernels.triton.tuning import TUNING

BYTES, NIBBLES = 3, 4
STREAM = TUNING["sm_90"].stream


@pytest.mark.parametrize("kind", [BYTES, NIBBLES])
@pytest.mark.parametrize("outputs", [576, 4096, 128256])
def test_a_single_row_is_made_pairs_where_it_is_multiplied(kind: int, outputs: int) -> None:
    cut = STREAM(kind, 1, outputs, 4096)
    assert cut is not None
    assert cut.rows == 1
    assert TUNING["sm_80"].stream(kind, 1, outputs, 4096) is None


@pytest.mark.parametrize(("kind", "rows", "outputs", "columns", "streamed"), [
    (NIBBLES, 2, 4096, 4096, True),
    (NIBBLES, 128, 4096, 14336, True),
    (NIBBLES, 256, 4096, 14336, True),
    (BYTES, 2, 4096, 4096, False),
    (BYTES, 64, 6144, 4096, False),
    (BYTES, 64, 28672, 4096, True),
    (BYTES, 128, 6144, 4096, True),
    (BYTES, 128, 28672, 4096, False),
    (BYTES, 128, 4096, 14336, False),
    (BYTES, 256, 28672, 4096, True),
    (BYTES, 256, 4096, 14336, True),
])  # fmt: skip
def test_rows_are_streamed_where_that_is_as_fast(
    kind: int, rows: int, outputs: int, columns: int, streamed: bool
) -> None:
    cut = STREAM(kind, rows, outputs, columns)
    assert (cut is not None) == streamed
    assert cut is None or 1 < cut.rows <= 64


def test_what_shared_memory_cannot_hold_is_left_to_the_other_kernel() -> None:
    """Llama-3.1-405B's shape: scales of 16,384 columns and more, in one part or two."""
    for rows in (1, 16, 256):
        assert STREAM(NIBBLES, rows, 106496, 16384) is None
        assert STREAM(NIBBLES, rows, 16384, 53248) is None
    assert STREAM(BYTES, 1, 106496, 16384) is None
    assert STREAM(BYTES, 32, 106496, 16384) is not None  # which holds none
