"""Pools: where models come from, what an accelerator brings along, and that a pool may say otherwise."""

import functools
from typing import Any

import pytest
import yaml
from tests.support.helm_chart import container, find, needs_helm, of_kind, pod_of, release, rendered

pytestmark = needs_helm
IMAGE, RANKS = {"image": {"path": "/model.gguf"}}, {"tensorParallel": 4}
MODELS: dict[str, dict[str, Any]] = {
    "image": {"image": {"path": "/opt/m.gguf"}},
    "pvc": {"pvc": {"claimName": "models", "path": "qwen/m.gguf"}},
    "host-path": {"hostPath": {"directory": "/srv/models"}},
    "image-volume": {"imageVolume": {"reference": "registry/m:1", "path": "m", "pullPolicy": "Never"}},
    "hub": {
        "hub": {"repository": "a/b", "revision": "refs/pr/1", "include": ["*Q4*"], "path": "m.gguf", "tokenSecret": "t"}
    },
    "hub-cached": {"hub": {"repository": "a/b", "endpoint": "https://hub.site"}, "cache": {"claimName": "cache"}},
    "s3": {
        "s3": {"uri": "s3://bucket/some/m", "region": "eu-1", "credentialsSecret": "c"},
        "cache": {"hostPath": "/c"},
    },
}
OVERRIDES: dict[str, Any] = {
    "runtimeClassName": "",
    "resource": "nvidia.com/mig-1g.10gb",
    "env": {"NVIDIA_DRIVER_CAPABILITIES": "all", "MORE": 10_000_000},
    "tolerations": [{"operator": "Exists"}],
    "supplementalGroups": [7],
    "hostMounts": ["/opt/driver"],
    "image": "registry/other@sha256:1",
    "strategy": {"type": "Recreate"},
    "startupSeconds": 61,
    "volumes": [{"name": "ca", "configMap": {"name": "ca"}}],
    "volumeMounts": [{"name": "ca", "mountPath": "/etc/ca"}],
    "securityContext": {"capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]}},
    "options": {"dtype": "float16", "kvCacheTokens": 10_000_000, "contextLength": 0, "reproducible": True},
}


@functools.cache
def pools() -> list[dict[str, Any]]:
    """One release with all the pools that are asked about here."""
    workers: dict[str, Any] = {name: {"accelerator": "cpu", "model": model} for name, model in MODELS.items()}
    workers |= {name: {"accelerator": name, "model": IMAGE} for name in ("cuda", "rocm", "ascend", "hygon")}
    workers |= {"other": {"accelerator": "cuda", "model": IMAGE, **OVERRIDES}}
    workers |= {"each-node": {"accelerator": "cuda", "model": IMAGE, "kind": "DaemonSet", "options": RANKS}}
    workers |= {"none": {"accelerator": "cuda", "model": IMAGE, "replicas": 0}}
    defaults = {"priorityClassName": "inference", "resources": {"requests": {"cpu": "3"}}}
    return rendered(values={"workers": workers, "workerDefaults": defaults, "rayNode": {"enabled": False}})


def pool(name: str) -> dict[str, Any]:
    """The Deployment or DaemonSet of a pool."""
    (found,) = (
        each
        for each in of_kind(pools(), "Deployment", "DaemonSet")
        if each["metadata"]["name"] == f"polyfleet-worker-{name}"
    )
    return found


def pod(name: str) -> dict[str, Any]:
    return pod_of(pool(name))


def argument(name: str, flag: str) -> str:
    """The value of one of the worker's flags."""
    (value,) = (word.removeprefix(f"--{flag}=") for word in pod(name)["containers"][0]["args"] if f"--{flag}=" in word)
    return str(value)


def models_volume(name: str) -> dict[str, Any]:
    (volume,) = (each for each in pod(name)["volumes"] if each["name"] == "models")
    return {key: value for key, value in volume.items() if key != "name"}


def fetch(name: str) -> dict[str, Any]:
    return container(pod(name), "fetch")


def test_a_model_in_the_image_needs_no_volume() -> None:
    assert argument("image", "model") == "/opt/m.gguf"
    assert argument("image", "model-name") == argument("image", "deployment") == "image"
    assert not [volume for volume in pod("image")["volumes"] if volume["name"] == "models"]


def test_models_in_volumes_are_mounted_read_only() -> None:
    assert models_volume("pvc") == {"persistentVolumeClaim": {"claimName": "models", "readOnly": True}}
    assert argument("pvc", "model") == "/models/qwen/m.gguf"
    assert models_volume("host-path") == {"hostPath": {"path": "/srv/models", "type": "Directory"}}
    assert argument("host-path", "model") == "/models"
    assert models_volume("image-volume") == {"image": {"reference": "registry/m:1", "pullPolicy": "Never"}}
    assert argument("image-volume", "model") == "/models/m"
    for name in ("pvc", "host-path", "image-volume", "hub", "s3"):
        mounts = pod(name)["containers"][0]["volumeMounts"]
        assert {"name": "models", "mountPath": "/models", "readOnly": True} in mounts


def test_models_from_a_hub_are_fetched_first() -> None:
    folder = "/models/a--b@refs--pr--1"
    assert argument("hub", "model") == f"{folder}/m.gguf"
    assert fetch("hub")["args"] == [
        "hub",
        "a/b",
        f"--into={folder}",
        "--revision=refs/pr/1",
        "--include=*Q4*",
        "--credentials=/etc/polyfleet/model-source",
    ]
    assert models_volume("hub") == {"emptyDir": {}}
    assert {"name": "model-source", "secret": {"secretName": "t", "defaultMode": 0o440}} in pod("hub")["volumes"]


def test_caches_are_shared_and_writable_for_the_init_container() -> None:
    assert argument("hub-cached", "model") == "/models/a--b@main"
    assert fetch("hub-cached")["args"] == ["hub", "a/b", "--into=/models/a--b@main", "--endpoint=https://hub.site"]
    assert models_volume("hub-cached") == {"persistentVolumeClaim": {"claimName": "cache"}}
    assert {"name": "models", "mountPath": "/models"} in fetch("hub-cached")["volumeMounts"]


def test_models_from_s3() -> None:
    assert argument("s3", "model") == "/models/bucket--some--m"
    credentials = "--credentials=/etc/polyfleet/model-source"
    assert fetch("s3")["args"] == [
        "s3",
        "s3://bucket/some/m",
        "--into=/models/bucket--some--m",
        "--region=eu-1",
        credentials,
    ]
    assert models_volume("s3") == {"hostPath": {"path": "/c", "type": "Directory"}}
    script = find(pools(), "ConfigMap", "polyfleet-fetch")["data"]["fetch_model.py"]
    compile(script, "fetch_model.py", "exec")


def test_a_worker_gets_a_device_for_each_rank() -> None:
    worker = container(pod("each-node"), "worker")
    assert (worker["resources"]["limits"]["nvidia.com/gpu"], worker["args"][-1]) == (4, "--tensor-parallel=4")
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}} in pod("each-node")["volumes"]


@pytest.mark.parametrize(
    ("name", "resource", "runtime", "groups"),
    [
        ("cuda", "nvidia.com/gpu", "nvidia", None),
        ("rocm", "amd.com/gpu", None, [44, 110]),
        ("ascend", "huawei.com/Ascend910", "ascend", [1000]),
        ("hygon", "hygon.com/dcu", None, [44, 110]),
    ],
)
def test_an_accelerator_brings_its_defaults(
    name: str, resource: str, runtime: str | None, groups: list[int] | None
) -> None:
    worker = pod(name)["containers"][0]
    assert worker["image"] == f"localhost/polyfleet/worker-{name}:0.1.0"
    assert worker["resources"]["limits"][resource] == worker["resources"]["requests"][resource] == 1
    assert pod(name).get("runtimeClassName") == runtime
    assert pod(name)["securityContext"].get("supplementalGroups") == groups
    assert [each["key"] for each in pod(name)["tolerations"]] == [resource]
    assert argument(name, "accelerator") == name
    mounts = [mount["mountPath"] for mount in worker["volumeMounts"] if mount["name"].startswith("host-")]
    assert mounts == (["/opt/hyhal"] if name == "hygon" else [])


def test_a_pool_may_say_otherwise() -> None:
    worker = pod("other")["containers"][0]
    assert "runtimeClassName" not in pod("other")
    assert worker["resources"]["limits"] == {"nvidia.com/mig-1g.10gb": 1, "memory": "8Gi"}
    environment = {entry["name"]: entry.get("value") for entry in worker["env"]}
    assert environment["NVIDIA_DRIVER_CAPABILITIES"] == "all"
    assert environment["MORE"] == "10000000"
    assert pod("other")["tolerations"] == [{"operator": "Exists"}]
    assert pod("other")["securityContext"]["supplementalGroups"] == [7]
    assert worker["image"] == "registry/other@sha256:1"
    assert pool("other")["spec"]["strategy"] == {"type": "Recreate"}
    assert worker["startupProbe"]["failureThreshold"] * worker["startupProbe"]["periodSeconds"] >= 61
    assert {"name": "ca", "mountPath": "/etc/ca"} in worker["volumeMounts"]
    assert worker["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert worker["securityContext"]["readOnlyRootFilesystem"] is True
    assert argument("other", "dtype") == "float16"
    assert argument("other", "kv-cache-tokens") == "10000000"
    assert argument("other", "context-length") == "0"
    assert argument("other", "reproducible") == "true"


@pytest.mark.parametrize("accelerator", ["metax", "no", "x_9-y"])
def test_a_third_partys_accelerator_gets_what_its_pool_says(accelerator: str) -> None:
    own = {"accelerator": accelerator, "image": "registry/worker:1", "resource": "metax-tech.com/gpu", "model": IMAGE}
    objects = rendered(values={"workers": {"p": own}})
    pod = pod_of(find(objects, "Deployment", "polyfleet-worker-p"))
    worker = container(pod, "worker")
    assert worker["resources"]["limits"]["metax-tech.com/gpu"] == 1
    assert f"--accelerator={accelerator}" in worker["args"]
    scheduler = yaml.safe_load(find(objects, "ConfigMap", "polyfleet-scheduler")["data"]["scheduler.yaml"])["scheduler"]
    assert scheduler["accelerators"][accelerator] == scheduler["accelerators"]["cuda"]
    assert scheduler["pools"]["p"]["accelerator"] == accelerator


def test_what_all_pools_share() -> None:
    for name in ("cuda", "image"):
        assert pod(name)["priorityClassName"] == "inference"
        assert pod(name)["containers"][0]["resources"]["requests"]["cpu"] == "3"
        assert [each["name"] for each in pod(name)["containers"]] == ["worker"]  # no ray-node


def test_a_device_is_not_waited_for_while_its_old_worker_has_it() -> None:
    assert pool("cuda")["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}
    assert pool("image")["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}


def test_one_worker_per_node() -> None:
    assert pool("each-node")["kind"] == "DaemonSet"
    assert pool("each-node")["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}
    assert not [each for each in of_kind(pools(), "PodDisruptionBudget") if "each-node" in each["metadata"]["name"]]


def test_a_pool_may_be_empty() -> None:
    assert pool("none")["spec"]["replicas"] == 0


def test_without_values_there_is_one_worker_with_the_small_model_beside_a_ray_node() -> None:
    (worker,) = (each for each in of_kind(release("defaults"), "Deployment") if "-worker-" in each["metadata"]["name"])
    assert [each["name"] for each in pod_of(worker)["containers"]] == ["worker", "ray-node"]
    assert worker["spec"]["replicas"] == 1
    arguments = container(pod_of(worker), "worker")["args"]
    assert "--model=/opt/polyfleet/models/SmolLM2-135M-Instruct.Q4_1.gguf" in arguments
    assert "--model-name=smollm2-135m-instruct" in arguments


@pytest.mark.parametrize(
    ("accelerator", "resource", "keys"),
    [
        ("xpu", "gpu.intel.com/i915", ["gpu.intel.com/xe", "gpu.intel.com/i915"]),
        ("hygon", "hygon.com/hcu", ["hygon.com/dcu", "hygon.com/hcu"]),
        ("ascend", "huawei.com/npu", ["huawei.com/Ascend910", "huawei.com/npu"]),
        ("ascend", "huawei.com/Ascend310P", ["huawei.com/Ascend910", "huawei.com/Ascend310P"]),
        ("cuda", "nvidia.com/mig-1g.10gb", ["nvidia.com/gpu", "nvidia.com/mig-1g.10gb"]),
    ],
)
def test_taints_are_tolerated_that_are_named_like_the_resource(
    accelerator: str, resource: str, keys: list[str]
) -> None:
    values = {"workers": {"p": {"accelerator": accelerator, "resource": resource, "model": IMAGE}}}
    spec = pod_of(find(rendered(values=values), "Deployment", "polyfleet-worker-p"))
    assert spec["tolerations"] == [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in keys]


SHARP = "a #b: c, {d} 'e' \"f\" <g>"


def test_words_that_yaml_would_read_otherwise_arrive_as_they_are() -> None:
    workers = {
        "pvc": {"accelerator": "cpu", "model": {"name": SHARP, "pvc": {"claimName": "1", "path": SHARP}}},
        "path": {"accelerator": "cpu", "model": {"hostPath": {"directory": f"/{SHARP}", "path": "m"}}},
        "1": {
            "accelerator": "cpu",
            "model": {
                "s3": {"uri": "s3://b/#m", "path": SHARP, "region": "1"},
                "cache": {"hostPath": f"/{SHARP}"},
            },
            "image": "registry/x: #y",
            "priorityClassName": "1e3",
        },
    }
    objects = rendered("--namespace", "1234", values={"workers": workers, "test": {"model": SHARP}})
    assert {each["metadata"]["namespace"] for each in objects} == {"1234"}
    pvc, path, s3 = (pod_of(find(objects, "Deployment", f"polyfleet-worker-{name}")) for name in ("pvc", "path", "1"))
    assert {f"--model=/models/{SHARP}", f"--model-name={SHARP}"} <= set(pvc["containers"][0]["args"])
    assert {"claimName": "1", "readOnly": True} in [each.get("persistentVolumeClaim") for each in pvc["volumes"]]
    assert f"/{SHARP}" in [each["hostPath"]["path"] for each in path["volumes"] if "hostPath" in each]
    assert {"s3://b/#m", "--region=1"} <= set(s3["initContainers"][0]["args"])
    assert f"--model=/models/b--m/{SHARP}" in s3["containers"][0]["args"]
    assert (s3["containers"][0]["image"], s3["priorityClassName"]) == ("registry/x: #y", "1e3")
    asked = find(objects, "Pod", "polyfleet-test")["spec"]["containers"][0]["args"]
    assert {f"--model={SHARP}", "--gateway=polyfleet-gateway.1234.svc:50051"} <= set(asked)
    for each in objects:
        assert all(isinstance(value, str) for value in each["metadata"]["labels"].values())


def test_a_name_with_dots_makes_names_that_services_may_have() -> None:
    objects = rendered(values={"fullnameOverride": "my.llm"})
    names = {each["metadata"]["name"] for each in of_kind(objects, "Service")}
    assert {"my-llm-gateway", "my-llm-scheduler"} <= names


def test_the_scheduler_knows_every_pool_though_none_of_its_workers_is_up() -> None:
    pools = {
        "fixed": {"accelerator": "cpu", "replicas": 3, "model": {"name": "m", **IMAGE}},
        "scaled": {"accelerator": "cuda", "autoscaling": {"owner": "hpa", "minReplicas": 2}, "model": IMAGE},
        "each-node": {"accelerator": "rocm", "kind": "DaemonSet", "model": IMAGE},
    }
    config = find(rendered(values={"workers": pools}), "ConfigMap", "polyfleet-scheduler")
    assert yaml.safe_load(config["data"]["scheduler.yaml"])["scheduler"]["pools"] == {
        "fixed": {"model": "m", "accelerator": "cpu", "workers": 3},
        "scaled": {"model": "scaled", "accelerator": "cuda", "workers": 2},
        "each-node": {"model": "each-node", "accelerator": "rocm", "workers": 1},
    }
