"""Blocks on disk: the directory of the option is a volume, of the pod or of the node."""

import functools
from typing import Any

import pytest
from tests.support.helm_chart import needs_helm, of_kind, pod_of, rendered

pytestmark = needs_helm
DISK = {"hostCacheTokens": 4096, "diskCacheDir": "/var/cache/blocks", "diskCacheMib": 1000}
POOLS: dict[str, dict[str, Any]] = {
    "bounded": {"options": DISK},
    "free": {"options": DISK | {"diskCacheMib": 0}},
    "node": {"options": DISK, "diskCacheHostPath": "/srv/kv"},
    "none": {"options": {}, "diskCacheHostPath": "/srv/kv"},
}
VOLUMES: dict[str, list[dict[str, Any]]] = {
    "bounded": [{"emptyDir": {"sizeLimit": "2000Mi"}}],
    "free": [{"emptyDir": {}}],
    "node": [{"hostPath": {"path": "/srv/kv", "type": "DirectoryOrCreate"}}],
    "none": [],
}


@functools.cache
def pods() -> dict[str, dict[str, Any]]:
    common = {"accelerator": "cpu", "model": {"image": {"path": "/model.gguf"}}}
    documents = rendered(values={"workers": {name: common | pool for name, pool in POOLS.items()}})
    found = {each["metadata"]["name"]: pod_of(each) for each in of_kind(documents, "Deployment")}
    return {name: found[f"polyfleet-worker-{name}"] for name in POOLS}


@pytest.mark.parametrize("name", POOLS)
def test_the_directory_is_a_volume(name: str) -> None:
    pod = pods()[name]
    expected = [{"name": "disk-cache", **volume} for volume in VOLUMES[name]]
    assert [each for each in pod["volumes"] if each["name"] == "disk-cache"] == expected
    mounts = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "disk-cache"]
    assert mounts == [{"name": "disk-cache", "mountPath": "/var/cache/blocks"} for _ in expected]
    arguments = pod["containers"][0]["args"]
    assert ("--disk-cache-dir=/var/cache/blocks" in arguments) is bool(expected)
