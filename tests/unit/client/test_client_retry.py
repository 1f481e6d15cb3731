"""The retry policy alone: which errors, how long, how often."""

import socket
import threading

import pytest

from polyfleet.client import Client, NotFoundError, PolyfleetError, RetryPolicy, UnavailableError
from polyfleet.client.channel import channel_options
from polyfleet.client.retry import Attempts

UNAVAILABLE = UnavailableError("UNAVAILABLE", "no worker")


def test_delay_doubles_up_to_its_bound() -> None:
    policy = RetryPolicy(attempts=10, initial_delay=1, max_delay=5)
    for attempt, longest in [(1, 1), (2, 2), (3, 4), (4, 5), (9, 5)]:
        for _ in range(20):
            delay = policy.delay(UNAVAILABLE, attempt)
            assert delay is not None
            assert longest / 2 <= delay <= longest
    assert policy.delay(UNAVAILABLE, 10) is None


def test_hint_is_kept_exactly() -> None:
    policy = RetryPolicy(max_delay=5)
    assert policy.delay(UnavailableError("UNAVAILABLE", "", retry_after=3.25), 1) == 3.25
    assert policy.delay(UnavailableError("UNAVAILABLE", "", retry_after=5.5), 1) is None


@pytest.mark.parametrize("error", [NotFoundError("NOT_FOUND", ""), PolyfleetError("INTERNAL", "", retry_after=1)])
def test_other_errors_are_not_tried_again(error: PolyfleetError) -> None:
    assert RetryPolicy().delay(error, 1) is None


def test_attempts_share_one_deadline() -> None:
    now = 100.0
    attempts = Attempts(RetryPolicy(attempts=5), 10, clock=lambda: now)
    assert attempts.begin() == 10
    now += 4
    assert attempts.begin() == 6
    now += 5.5
    with pytest.raises(UnavailableError):
        attempts.wait_after(UnavailableError("UNAVAILABLE", "", retry_after=0.5))
    assert attempts.wait_after(UnavailableError("UNAVAILABLE", "", retry_after=0.25)) == 0.25
    now += 5
    assert attempts.begin() == 0


def test_tries_dial_anew_behind_a_connection_that_broke() -> None:
    dialled = list[str]()

    def break_all(listener: socket.socket) -> None:
        while True:
            try:
                connection, (host, _) = listener.accept()
            except OSError:
                return
            connection.close()
            dialled.append(host)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=break_all, args=(listener,), daemon=True).start()
        with Client(f"127.0.0.1:{listener.getsockname()[1]}") as client, pytest.raises(UnavailableError):
            client.models()
        listener.shutdown(socket.SHUT_RDWR)  # wakes who accepts
    assert len(dialled) >= 3, "gRPC waited for longer than all tries took"


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1:50051", True),
        ("localhost:1", True),
        ("[::1]:50051", True),
        ("unix:/run/gateway", True),
        ("10.0.0.1:50051", False),
        ("gateway.example:443", False),
        ("127.example:443", False),
    ],
)
def test_proxies_are_off_on_loopback_only(address: str, loopback: bool) -> None:
    assert (("grpc.enable_http_proxy", 0) in channel_options(address, None)) is loopback
