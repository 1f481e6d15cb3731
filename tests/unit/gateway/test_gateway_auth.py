"""Who may call the gateway: holders of its keys, and from where without."""

import hashlib
from pathlib import Path

import pytest
import yaml

from polyfleet.gateway.auth import Authenticator, check_listen
from polyfleet.gateway.errors import Unauthenticated
from polyfleet.process.config import ConfigError
from polyfleet.process.keys import Role


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


def test_beyond_loopback_keys_are_needed() -> None:
    check_listen("127.0.0.1:1", None, insecure=False)
    check_listen("0.0.0.0:1", Path("keys"), insecure=False)
    check_listen("0.0.0.0:1", None, insecure=True)
    with pytest.raises(ConfigError, match="--insecure-no-keys"):
        check_listen("0.0.0.0:1", None, insecure=False)
