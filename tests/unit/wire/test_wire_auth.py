"""The fleet token and the loopback rule."""

from pathlib import Path

import pytest

from polyfleet.wire import auth


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:50051",
        "127.8.9.1",
        "localhost:0",
        "LOCALHOST",
        "[::1]:80",
        "::1",
        "ipv4:127.0.0.1:4",
        "ipv6:%5B::1%5D:4",
        "ipv6:[::1]:4",
        "[::ffff:127.0.0.1]:4",
        "unix:/run/x.sock",
        "unix:",
    ],
)
def test_loopback_addresses(address: str) -> None:
    assert auth.is_loopback(address)


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0:50051",
        "[::]:50051",
        "10.0.0.1:1",
        "ipv4:10.0.0.1:1",
        "ipv6:%5Bfe80::1%25eth0%5D:1",
        "",
        ":80",
        "host:1",
        "localhost.evil.example:1",
        "127.0.0.1.evil.example:1",
    ],
)
def test_addresses_beyond_loopback(address: str) -> None:
    assert not auth.is_loopback(address)


def test_token_is_the_first_line_stripped(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("  secret-1 \nsecond line\n")
    assert auth.read_token(path) == "secret-1"
    assert auth.fleet_token(None, {auth.FLEET_TOKEN_FILE: str(path)}) == "secret-1"
    assert auth.fleet_token(None, {}) is None


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"  \n", b"\xff\xfe", "gehe\u00efm".encode(), b"a\x00b", b"a" * 1025, b"a" * 5_000_000]
)
def test_unusable_token_file_is_refused_with_its_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(auth.AuthSetupError, match=str(path)):
        auth.read_token(path)


def test_the_longest_token(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("a" * 1024 + "\n")
    assert auth.read_token(path) == "a" * 1024


def test_missing_token_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(auth.AuthSetupError, match="No such file"):
        auth.read_token(tmp_path / "none")


def test_beyond_loopback_needs_a_token_to_bind() -> None:
    auth.check_bind("127.0.0.1:0", None)
    auth.check_bind("0.0.0.0:0", "secret")
    with pytest.raises(auth.AuthSetupError, match=r"0\.0\.0\.0:7"):
        auth.check_bind("0.0.0.0:7", None)


@pytest.mark.parametrize("bound", ["0.0.0.0:1", "127.0.0.1:1", "[::1]:1", "unix:/tmp/x"])
def test_where_there_is_a_token_calls_need_it(bound: str) -> None:
    assert auth.may_call(bound, auth.bearer_metadata("secret"), "secret")
    assert auth.may_call(bound, (("Authorization", b"bearer secret"),), "secret")
    for wrong in (
        (),
        (("authorization", "secret"),),
        (("authorization", "Bearer secre"),),
        (("authorization", "Basic x"),),
    ):
        assert not auth.may_call(bound, wrong, "secret")


def test_without_a_token_loopback_is_open_and_nothing_else() -> None:
    assert auth.may_call("127.0.0.1:1", (), None)
    assert not auth.may_call("0.0.0.0:1", auth.bearer_metadata("secret"), None)
    assert auth.bearer_metadata(None) == ()
