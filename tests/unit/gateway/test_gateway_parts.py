"""Small parts of the gateway: health, errors, callbacks, keys, configuration."""

import asyncio
import hashlib
from pathlib import Path

import pytest
import yaml

from polyfleet.gateway.auth import Authenticator, check_listen
from polyfleet.gateway.config import GatewayConfig, load_config
from polyfleet.gateway.errors import (
    Internal,
    InvalidArgument,
    Unauthenticated,
    Unavailable,
    error_of,
)
from polyfleet.gateway.health import Health
from polyfleet.gateway.listeners import Listeners
from polyfleet.wire.config import ConfigError
from polyfleet.wire.keys import Role, read_keys


def test_health_says_why_not() -> None:
    ready = 0
    health = Health(lambda: ready)
    assert (health.serving, health.reason) == (False, "No worker is ready.")
    ready = 1
    assert (health.serving, health.reason) == (True, "")
    health.draining = True
    assert (health.serving, health.reason) == (False, "The gateway is shutting down.")


def test_workers_errors_keep_their_code() -> None:
    assert isinstance(error_of(14, "x"), Unavailable)
    assert isinstance(error_of(3, "x"), InvalidArgument)
    assert isinstance(error_of(12, "x"), Internal)
    assert isinstance(error_of(99, "x"), Internal)


async def test_listeners_call_and_wake() -> None:
    listeners, calls = Listeners(), list[int]()
    listeners.add(lambda: calls.append(1))
    waiting = asyncio.create_task(listeners.wait())
    cancelled = asyncio.create_task(listeners.wait())
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.sleep(0)
    listeners.call()
    await waiting
    listeners.call()
    assert calls == [1, 1]


def write(path: Path, keys: object) -> Path:
    path.write_text(yaml.safe_dump(keys))
    return path


def test_keys_have_roles(tmp_path: Path) -> None:
    entry = {"id": "ops", "hash": hashlib.sha256(b"s3cret").hexdigest(), "role": "operator"}
    keys = Authenticator(write(tmp_path / "keys.yaml", {"keys": [entry]}))
    assert keys.required
    principal = keys.check("Bearer s3cret")
    assert (principal.key_id, principal.role) == ("ops", Role.OPERATOR)
    for header in (None, "", "Bearer", "Bearer  ", "Basic s3cret", "Bearer s3cret2", b"Bearer \xff", "Bearer \ud800"):
        with pytest.raises(Unauthenticated):
            keys.check(header)
    assert not Authenticator(None).required
    assert Authenticator(None).check(None).key_id == ""


@pytest.mark.parametrize(
    "content",
    [
        {"keys": [{"id": "a", "hash": "short"}]},
        {"keys": [{"id": "a", "hash": "G" * 64}]},
        {"keys": [{"id": "a", "hash": "a" * 64, "role": "king"}]},
        {"keys": [{"id": "a", "hash": "a" * 64, "extra": 1}]},
        {"key": []},
        [],
    ],
)
def test_a_malformed_keys_file_is_refused(tmp_path: Path, content: object) -> None:
    with pytest.raises(ConfigError, match=r"keys\.yaml is not valid"):
        read_keys(write(tmp_path / "keys.yaml", content))


def test_beyond_loopback_keys_are_needed() -> None:
    check_listen("127.0.0.1:1", None, insecure=False)
    check_listen("0.0.0.0:1", Path("keys"), insecure=False)
    check_listen("0.0.0.0:1", None, insecure=True)
    with pytest.raises(ConfigError, match="--insecure-no-keys"):
        check_listen("0.0.0.0:1", None, insecure=False)


def test_configuration(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("gateway: {fleet: 'x:1', limits: {max_queued: 0, queue_timeout: 2}}\nworker: {anything: 1}\n")
    config = load_config(path, {"fleet": None, "http_listen": "127.0.0.1:9"})
    assert (config.fleet, config.http_listen, config.limits.max_queued) == ("x:1", "127.0.0.1:9", 0)
    path.write_text("# nothing\n")
    assert load_config(path) == load_config(None) == GatewayConfig()
    for wrong in (
        "gateway: {limits: {max_concurrent: 0}}",
        "gateway: {listen: x}",
        "gateway: [",
        "gateway: {fleet: 3}",
    ):
        path.write_text(wrong)
        with pytest.raises(ConfigError, match=r"c\.yaml is not valid"):
            load_config(path)


@pytest.mark.parametrize("origin", ["*", "https://app.example", "http://127.0.0.1:3000", "http://[::1]:80", "app://x"])
def test_origins_are_taken_as_browsers_send_them(origin: str) -> None:
    assert load_config(None, {"cors_origins": (origin,)}).cors_origins == (origin,)


@pytest.mark.parametrize(
    "origin", ["", "app.example", "https://app.example/", "https://App.example", "https://*", "null"]
)
def test_an_origin_that_no_browser_sends_is_refused(origin: str) -> None:
    with pytest.raises(ConfigError, match="cors_origins"):
        load_config(None, {"cors_origins": (origin,)})
