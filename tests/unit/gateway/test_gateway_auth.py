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


def test_an_expired_key_is_refused_and_a_tenants_limits_are_read(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"s3cret").hexdigest()
    old = {"id": "old", "hash": digest, "expires": "2020-01-01T00:00:00Z"}
    path = write(tmp_path / "keys.yaml", {"keys": [old], "tenants": [{"id": "old", "weight": 3}]})
    keys = Authenticator(path)
    with pytest.raises(Unauthenticated, match="The key old has expired"):
        keys.check("Bearer s3cret")
    assert (keys.tenants["old"].weight, keys.num_tenants) == (3, 1)


@pytest.mark.parametrize(
    ("tenants", "problem"),
    [
        ([{"id": "b"}], "no key belongs to tenant b"),
        ([{"id": "a"}, {"id": "a"}], "tenant a is named twice"),
        ([{"id": "a", "weight": 0}], "weight"),
        ([{"id": "a", "weight": float("nan")}], "weight"),
        ([{"id": "a", "max_concurrent": -1}], "max_concurrent"),
        ([{"id": "a", "tokens_per_hour": 1}], "tokens_per_hour"),
    ],
)
def test_quotas_with_nonsense_are_refused(tmp_path: Path, tenants: object, problem: str) -> None:
    keys = [{"id": "a", "hash": "0" * 64}]
    with pytest.raises(ConfigError, match=problem):
        Authenticator(write(tmp_path / "keys.yaml", {"keys": keys, "tenants": tenants}))
