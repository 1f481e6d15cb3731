"""The bounds of every gRPC server, and its share of descriptors."""

import resource

import pytest

from polyfleet.process.servers import connection_share, raise_descriptor_limit, server_options


def test_times_are_in_milliseconds_and_each_argument_is_given_once() -> None:
    options = server_options(
        max_receive_bytes=1, max_send_bytes=2, min_ping_seconds=5, handshake_seconds=0.5, idle_seconds=3
    )
    found = dict(options)
    assert len(found) == len(options)
    assert found["grpc.server_handshake_timeout_ms"] == 500
    assert found["grpc.max_connection_idle_ms"] == 3000
    assert found["grpc.http2.min_recv_ping_interval_without_data_ms"] == 5000


@pytest.mark.parametrize(
    ("descriptors", "wanted", "ports", "share"),
    [(20_000, 4096, 2, 4096), (1024, 4096, 2, 448), (1024, 100, 2, 100), (256, 4096, 1, 192), (20, 4096, 2, 5)],
)
def test_some_descriptors_stay_free(descriptors: int, wanted: int, ports: int, share: int) -> None:
    assert connection_share(descriptors, wanted, ports) == share


def test_the_soft_limit_rises_to_the_hard_one() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        assert raise_descriptor_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 512
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
