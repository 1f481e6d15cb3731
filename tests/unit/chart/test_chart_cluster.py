"""Rendering against a cluster: Secrets that must exist, and random values that are made once."""

from base64 import b64decode
from hashlib import sha256
from typing import Any

import pytest
import yaml
from tests.support.helm_chart import find, needs_helm, refusal, rendered
from tests.support.kube_api import kube_api

pytestmark = needs_helm
TOKENS = {"fleet-token": "kept-fleet-token", "ray-token": "kept-ray-token"}


def against(server: str) -> tuple[str, ...]:
    """Arguments that let helm look things up there."""
    return "--dry-run=server", "--disable-openapi-validation", "--kube-apiserver", server


def decoded(secret: dict[str, Any]) -> dict[str, str]:
    return {key: b64decode(value).decode() for key, value in secret["data"].items()}


def test_an_upgrade_keeps_what_was_random() -> None:
    with kube_api({"polyfleet-fleet": TOKENS, "polyfleet-keys": {"api-key": "pf-kept"}}) as server:
        values = {"auth": {"keys": [{"id": "team-a", "hash": "a" * 64, "role": "operator"}]}}
        objects = rendered(*against(server), values=values)
    assert decoded(find(objects, "Secret", "polyfleet-fleet")) == TOKENS
    keys = decoded(find(objects, "Secret", "polyfleet-keys"))
    assert keys["api-key"] == "pf-kept"
    first, second = yaml.safe_load(keys["keys.yaml"])["keys"]
    assert first == {"id": "first", "hash": sha256(b"pf-kept").hexdigest(), "role": "tenant"}
    assert second == {"id": "team-a", "hash": "a" * 64, "role": "operator"}


def test_an_installation_makes_its_own() -> None:
    with kube_api({}) as server:
        made = [rendered(*against(server)) for _ in range(2)]
    for name, keys in (("polyfleet-fleet", set(TOKENS)), ("polyfleet-keys", {"api-key", "keys.yaml"})):
        one, other = (decoded(find(objects, "Secret", name)) for objects in made)
        assert one.keys() == keys
        assert all(len(value) >= 48 and value != other[key] for key, value in one.items())


MISSING: dict[str, tuple[dict[str, Any], str]] = {
    "fleet": ({"fleetSecret": "gone"}, "fleetSecret names the Secret gone, which does not exist in the namespace llm"),
    "keys": ({"auth": {"existingSecret": "gone"}}, "auth.existingSecret names the Secret gone"),
    "TLS": ({"tls": {"enabled": True, "existingSecret": "gone"}}, "tls.existingSecret names the Secret gone"),
    "pull": ({"global": {"imagePullSecrets": ["gone"]}}, "global.imagePullSecrets names the Secret gone"),
    "hub": (
        {"workers": {"p": {"accelerator": "cpu", "model": {"hub": {"repository": "a/b", "tokenSecret": "gone"}}}}},
        "workers.p.model.hub.tokenSecret names the Secret gone",
    ),
    "s3": (
        {"workers": {"p": {"accelerator": "cpu", "model": {"s3": {"uri": "s3://b/m", "credentialsSecret": "gone"}}}}},
        "workers.p.model.s3.credentialsSecret names the Secret gone",
    ),
    "key of it": ({"fleetSecret": "half"}, "fleetSecret: the Secret half has no key ray-token."),
}


@pytest.mark.parametrize("case", MISSING)
def test_a_missing_secret_is_refused(case: str) -> None:
    values, sentence = MISSING[case]
    with kube_api({"half": {"fleet-token": "x"}}) as server:
        assert sentence in refusal(values, *against(server))


def test_given_secrets_replace_the_chart_s_own() -> None:
    secrets = {"mine": TOKENS, "callers": {"keys.yaml": "keys: []", "api-key": "pf-x"}}
    with kube_api(secrets) as server:
        values = {"fleetSecret": "mine", "auth": {"existingSecret": "callers"}}
        objects = rendered(*against(server), values=values)
    assert not [each for each in objects if each["kind"] == "Secret"]
    text = yaml.safe_dump_all(objects)
    assert "secretName: mine" in text
    assert "secretName: callers" in text
    assert "polyfleet-fleet" not in text
