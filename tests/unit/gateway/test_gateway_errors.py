"""Errors of workers as the gateway tells them."""

from polyfleet.gateway.errors import Internal, InvalidArgument, Unavailable, error_of


def test_workers_errors_keep_their_code() -> None:
    assert isinstance(error_of(14, "x"), Unavailable)
    assert isinstance(error_of(3, "x"), InvalidArgument)
    assert isinstance(error_of(12, "x"), Internal)
    assert isinstance(error_of(99, "x"), Internal)
