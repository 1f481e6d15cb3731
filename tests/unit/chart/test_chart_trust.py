"""How the parts know each other: certificates and keys by role, mounted where the processes look for them."""

from base64 import b64decode
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.helm_chart import Object, container, find, needs_helm, of_kind, pods, rendered
from tests.support.kube_api import kube_api

from polyfleet.process.fleet_keys import FleetKeys
from polyfleet.process.fleet_tls import member_of
from polyfleet.process.keys import Role
from polyfleet.scheduler.config import load_config
from polyfleet.serving.command import config_of
from polyfleet.serving.command import main as serving

pytestmark = needs_helm
TLS, FLEET = "/etc/polyfleet/fleet-tls", "/etc/polyfleet/fleet"
ISSUER = {"name": "ca", "kind": "ClusterIssuer"}


def secret_at(pod: Object, name: str, path: str) -> Object:
    """The Secret's volume that a container mounts there."""
    (mount,) = (each for each in container(pod, name)["volumeMounts"] if each["mountPath"] == path)
    (volume,) = (each["secret"] for each in pod["volumes"] if each["name"] == mount["name"])
    found: Object = volume
    return found


def places(objects: list[Object]) -> dict[str, tuple[Object, str]]:
    """Pod and container by the role that it plays; a ray-node's launchers play the scheduler's."""
    found = dict(pods(objects))
    worker = found["polyfleet-worker-cpu"]
    return {
        "gateway": (found["polyfleet-gateway"], "gateway"),
        "scheduler": (found["polyfleet-scheduler"], "scheduler"),
        "worker": (worker, "worker"),
        "launcher": (worker, "ray-node"),
    }


def test_each_part_mounts_a_certificate_of_its_role_and_is_probed_without_one(tmp_path: Path) -> None:
    values = {"tls": {"internal": {"enabled": True, "certManager": {"enabled": True, "issuerRef": ISSUER}}}}
    objects = rendered("--api-versions", "cert-manager.io/v1", values=values)
    made = {each["spec"]["secretName"]: each["spec"] for each in of_kind(objects, "Certificate")}
    for part, (pod, name) in places(objects).items():
        role = Role("scheduler" if part == "launcher" else part)
        volume = secret_at(pod, name, TLS)
        (dns_name,) = made[volume["secretName"]]["dnsNames"]
        assert member_of([dns_name]) == (role, "polyfleet.llm")
        assert [each["path"] for each in volume["items"]] == ["tls.crt", "tls.key", "ca.crt"]
        probes = [value for key, value in container(pod, name).items() if key.endswith("Probe")]
        assert all(each["httpGet"]["path"] in ("/healthz", "/readyz") for each in probes)
    assert member_of(made["polyfleet-tls-operator"]["dnsNames"]) == (Role.OPERATOR, "polyfleet.llm")
    assert {"server auth", "client auth"} <= set(made["polyfleet-tls-worker"]["usages"])
    config = tmp_path / "scheduler.yaml"
    config.write_text(find(objects, "ConfigMap", "polyfleet-scheduler")["data"]["scheduler.yaml"])
    assert load_config(config, {}).fleet_tls_dir == TLS
    arguments = [each.replace("$(POD_IP)", "10.0.0.7") for each in container(*places(objects)["worker"])["args"]]
    assert config_of(dict(serving.make_context("test", arguments).params)).fleet_tls_dir == Path(TLS)


def test_secrets_of_ones_own_are_mounted_by_role() -> None:
    given = {"gateway": "g-tls", "scheduler": "s-tls", "worker": "w-tls"}
    objects = rendered(values={"tls": {"internal": {"enabled": True, "existingSecrets": given}}})
    assert not of_kind(objects, "Certificate")
    mounted = {part: secret_at(*place, TLS)["secretName"] for part, place in places(objects).items()}
    assert mounted == {**given, "launcher": "s-tls"}


def fleet_secret(server: str, generation: int) -> dict[str, str]:
    arguments = ("--dry-run=server", "--disable-openapi-validation", "--kube-apiserver", server)
    values = {"fleetKeys": {"enabled": True, "generation": generation}}
    data = find(rendered(*arguments, values=values), "Secret", "polyfleet-fleet")["data"]
    return {key: b64decode(value).decode() for key, value in data.items()}


def test_keys_of_two_generations_are_valid_at_once_and_no_longer(tmp_path: Path) -> None:
    found: dict[str, str] = {}
    history: list[tuple[int, dict[str, str]]] = []
    for generation in (1, 1, 2, 2, 3):
        with kube_api({"polyfleet-fleet": found}) as server:
            found = fleet_secret(server, generation)
        history.append((generation, found))
        (tmp_path / "keys.yaml").write_text(found["fleet-keys.yaml"])
        keys = FleetKeys(tmp_path / "keys.yaml")
        for born, secret in history:
            for role in ("gateway", "scheduler", "worker", "operator"):
                key = keys.key_of((("authorization", f"Bearer {secret[f'{role}-token']}"),))
                assert (key is not None and key.role.value == role) is (born >= generation - 1)
    first, again, second, kept, third = (secret for _, secret in history)
    assert first == again != second == kept != third
    assert first["ray-token"] == third["ray-token"]


def test_each_part_shows_its_own_key_and_servers_have_the_hashes(tmp_path: Path) -> None:
    objects = rendered(values={"fleetKeys": {"enabled": True}})
    for part, (pod, name) in places(objects).items():
        items: list[Any] = secret_at(pod, name, FLEET)["items"]
        by_path = {each["path"]: each["key"] for each in items}
        role = "scheduler" if part == "launcher" else part
        assert by_path == {"fleet-token": f"{role}-token", "fleet-keys.yaml": "fleet-keys.yaml"}
    config = tmp_path / "scheduler.yaml"
    config.write_text(find(objects, "ConfigMap", "polyfleet-scheduler")["data"]["scheduler.yaml"])
    assert load_config(config, {}).fleet_keys_file == f"{FLEET}/fleet-keys.yaml"
    assert f"--fleet-keys-file={FLEET}/fleet-keys.yaml" in container(*places(objects)["worker"])["args"]
    data = find(objects, "Secret", "polyfleet-fleet")["data"]
    keys = yaml.safe_load(b64decode(data["fleet-keys.yaml"]))["keys"]
    for key in keys:
        assert key["hash"] == sha256(b64decode(data[f"{key['role']}-token"])).hexdigest()


@pytest.mark.parametrize("role", ["gateway", "scheduler", "worker"])
def test_without_them_all_show_the_fleets_token(role: str) -> None:
    place = places(rendered())[role]
    assert secret_at(*place, FLEET)["items"] == [{"key": "fleet-token", "path": "fleet-token"}]
