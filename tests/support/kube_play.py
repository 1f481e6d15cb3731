"""A rendered release as `podman kube play` can run it: each pod on its own address of one network.

Podman 4.3 knows no Services, probes of gRPC, names of pods' fields in arguments or Secrets as they are, and shares
volumes of one name among pods. So Services become host names of the pods that they select, Secrets become ConfigMaps
of the same content, and the rest is filled in or left out. Programs, arguments, files and restrictions are the chart's.
"""

import base64
from collections.abc import Iterator, Mapping
from copy import deepcopy

from tests.support.helm_chart import Object, containers, of_kind, pod_of

POD_IP = "$(POD_IP)"


def playable(objects: list[Object], addresses: Mapping[str, str]) -> dict[str, list[Object]]:
    """What to play for each pod of the release, by its name; addresses are theirs."""
    workloads = of_kind(objects, "Deployment", "DaemonSet", "Pod")
    config = [*of_kind(objects, "ConfigMap"), *map(_as_config_map, of_kind(objects, "Secret"))]
    aliases = list(_aliases(of_kind(objects, "Service"), workloads, addresses))
    return {_name(each): [*config, _pod(each, addresses[_name(each)], aliases)] for each in workloads}


def _name(workload: Object) -> str:
    return str(workload["metadata"]["name"])


def _labels(workload: Object) -> dict[str, str]:
    where = workload if workload["kind"] == "Pod" else workload["spec"]["template"]
    labels: dict[str, str] = where["metadata"]["labels"]
    return labels


def _aliases(services: list[Object], workloads: list[Object], addresses: Mapping[str, str]) -> Iterator[Object]:
    for service in services:
        metadata, selector = service["metadata"], service["spec"]["selector"]
        names = [metadata["name"], f"{metadata['name']}.{metadata['namespace']}.svc"]
        for each in workloads:
            if selector.items() <= _labels(each).items():
                yield {"ip": addresses[_name(each)], "hostnames": names}


def _as_config_map(secret: Object) -> Object:
    data = {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": secret["metadata"]["name"]}, "data": data}


def _pod(workload: Object, address: str, aliases: list[Object]) -> Object:
    name, spec = _name(workload), deepcopy(pod_of(workload))
    for volume in spec["volumes"]:
        volume["name"] = f"{name}-{volume['name']}"
        if secret := volume.pop("secret", None):
            volume["configMap"] = {"name": secret["secretName"], "items": secret["items"]}
    for container in containers(spec):
        for key in ("startupProbe", "readinessProbe", "livenessProbe", "lifecycle", "ports"):
            container.pop(key, None)
        container["args"] = [word.replace(POD_IP, address) for word in container["args"]]
        for variable in container["env"]:
            if variable.pop("valueFrom", None):
                variable["value"] = address
        mounts = [each for each in container["volumeMounts"] if each["mountPath"] != "/dev/shm"]  # podman makes one
        container["volumeMounts"] = [each | {"name": f"{name}-{each['name']}"} for each in mounts]
    used = {mount["name"] for each in containers(spec) for mount in each["volumeMounts"]}
    spec["volumes"] = [each for each in spec["volumes"] if each["name"] in used]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": _labels(workload)},
        "spec": spec | {"hostAliases": aliases},
    }
