"""Rendering against a cluster: Secrets that must exist, and random values that are made once."""

from base64 import b64decode
from hashlib import sha256
from typing import Any

import pytest
import yaml
from tests.support.helm_chart import find, needs_helm, refusal, rendered
from tests.support.kube_api import Documents, kube_api, stored

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
    "certificate of a role": (
        {
            "tls": {
                "internal": {
                    "enabled": True,
                    "existingSecrets": dict.fromkeys(("gateway", "scheduler", "worker"), "gone"),
                }
            }
        },
        "tls.internal.existingSecrets.gateway names the Secret gone",
    ),
    "key of a role": (
        {"fleetKeys": {"enabled": True}, "fleetSecret": "whole"},
        "fleetSecret: the Secret whole has no key gateway-token.",
    ),
    "pull": ({"global": {"imagePullSecrets": ["gone"]}}, "global.imagePullSecrets names the Secret gone"),
    "hub": (
        {"workers": {"p": {"accelerator": "cpu", "model": {"hub": {"repository": "a/b", "tokenSecret": "gone"}}}}},
        "workers.p.model.hub.tokenSecret names the Secret gone",
    ),
    "s3": (
        {"workers": {"p": {"accelerator": "cpu", "model": {"s3": {"uri": "s3://b/m", "credentialsSecret": "gone"}}}}},
        "workers.p.model.s3.credentialsSecret names the Secret gone",
    ),
    "roots for the console": (
        {"console": {"enabled": True}, "tls": {"enabled": True, "existingSecret": "door"}},
        "tls.existingSecret: the Secret door has no key ca.crt.",
    ),
    "key of it": ({"fleetSecret": "half"}, "fleetSecret: the Secret half has no key ray-token."),
}


@pytest.mark.parametrize("case", MISSING)
def test_a_missing_secret_is_refused(case: str) -> None:
    values, sentence = MISSING[case]
    door = {"tls.crt": "x", "tls.key": "x"}
    with kube_api({"half": {"fleet-token": "x"}, "whole": TOKENS, "door": door}) as server:
        assert sentence in refusal(values, *against(server))


CLAIMS: dict[str, dict[str, Any]] = {
    "scheduler.persistence.existingClaim": {"scheduler": {"persistence": {"enabled": True, "existingClaim": "gone"}}},
    "workers.p.model.pvc.claimName": {
        "workers": {"p": {"accelerator": "cpu", "model": {"pvc": {"claimName": "gone"}}}}
    },
    "workers.p.model.cache.claimName": {
        "workers": {
            "p": {"accelerator": "cpu", "model": {"hub": {"repository": "a/b"}, "cache": {"claimName": "gone"}}}
        }
    },
    "workers.p.volumes": {
        "workers": {
            "p": {
                "accelerator": "cpu",
                "model": {"image": {"path": "/m.gguf"}},
                "volumes": [{"name": "x", "persistentVolumeClaim": {"claimName": "gone"}}],
            }
        }
    },
}


@pytest.mark.parametrize("key", CLAIMS)
def test_a_missing_claim_is_refused(key: str) -> None:
    with kube_api({}) as server:
        said = refusal(CLAIMS[key], *against(server))
    assert f"{key} names the claim gone, which does not exist in the namespace llm: make it first." in said
    with kube_api({}, stored("PersistentVolumeClaim", "gone", spec={})) as server:
        assert rendered(*against(server), values=CLAIMS[key])


def test_a_missing_account_is_refused() -> None:
    values = {"serviceAccount": {"name": "mine"}}
    with kube_api({}) as server:
        assert "serviceAccount.name names the account mine, which does not exist" in refusal(values, *against(server))


def claim(size: str, storage_class: str = "fast") -> Documents:
    """The chart's own claim as it is in the cluster."""
    spec = {"storageClassName": storage_class, "resources": {"requests": {"storage": size}}}
    return stored("PersistentVolumeClaim", "polyfleet-scheduler", spec=spec)


@pytest.mark.parametrize(
    ("has", "wants", "grows", "sentence"),
    [
        ("5Gi", "5Gi", False, ""),
        ("1Gi", "1024Mi", False, ""),
        ("5Gi", "10Gi", True, ""),
        ("5Gi", "10Gi", False, "and its storage class fast lets no claim grow to 10Gi"),
        ("5Gi", "1Gi", True, "and can't shrink to 1Gi"),
        ("1Ti", "900G", True, "and can't shrink to 900G"),
    ],
)
def test_a_claim_changes_only_as_kubernetes_lets_it(has: str, wants: str, grows: bool, sentence: str) -> None:
    values = {"scheduler": {"persistence": {"enabled": True, "size": wants}}}
    with kube_api({}, claim(has), stored("StorageClass", "fast", allowVolumeExpansion=grows)) as server:
        if not sentence:
            assert rendered(*against(server), values=values)
            return
        said = refusal(values, *against(server))
    assert f"scheduler.persistence.size: the claim polyfleet-scheduler has {has}" in said
    assert sentence in said


def test_a_claim_keeps_its_class() -> None:
    values = {"scheduler": {"persistence": {"enabled": True, "storageClass": "slow"}}}
    with kube_api({}, claim("1Gi")) as server:
        assert "has the class fast, which can't be changed to slow" in refusal(values, *against(server))


def scaled(**autoscaling: Any) -> dict[str, Any]:
    """Values with one pool that somebody scales."""
    pool = {"accelerator": "cpu", "model": {"image": {"path": "/m.gguf"}}, "autoscaling": autoscaling}
    return {"workers": {"p": pool}}


def replicas(values: dict[str, Any], *objects: Documents) -> int | None:
    """What the pool's Deployment says when rendered against a cluster with these objects."""
    with kube_api({}, *objects) as server:
        pool = find(rendered(*against(server), values=values), "Deployment", "polyfleet-worker-p")
    found: int | None = pool["spec"].get("replicas")
    return found


@pytest.mark.parametrize("running", [0, 1, 8])
def test_a_new_owner_of_the_number_takes_over_what_runs(running: int) -> None:
    live = stored("Deployment", "polyfleet-worker-p", spec={"replicas": running})
    assert replicas(scaled(owner="hpa"), live) == running
    assert replicas(scaled(owner="hpa")) is None


def test_a_number_that_an_autoscaler_made_is_not_lost_by_a_default() -> None:
    live = stored("Deployment", "polyfleet-worker-p", spec={"replicas": 8})
    scaler = stored("HorizontalPodAutoscaler", "polyfleet-worker-p")
    with kube_api({}, live, scaler) as server:
        said = refusal(scaled(), *against(server))
    assert (
        "an autoscaler has made it 8 workers, and without it there would be 1: say how many in workers.p.repl" in said
    )
    chosen = scaled()
    chosen["workers"]["p"]["replicas"] = 6
    assert replicas(chosen, live, scaler) == 6
    assert replicas(scaled(), live) == 1  # what `kubectl scale` made is the values' again


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
