"""Values that can't work are refused before anything is installed, each with a sentence that names the key."""

from typing import Any

import pytest
from tests.support.helm_chart import needs_helm, refusal

pytestmark = needs_helm
IMAGE = {"image": {"path": "/model.gguf"}}
DIGEST = "sha256:" + "0" * 64


def pools_of_one(*percents: int | None) -> dict[str, Any]:
    """Pools a and b of model m, with these shares."""
    model = {"accelerator": "cpu", "model": {**IMAGE, "name": "m"}}
    shares = ({} if percent is None else {"trafficPercent": percent} for percent in percents)
    return {"workers": {name: {**model, **share} for name, share in zip("ab", shares, strict=True)}}


def pool(**more: Any) -> dict[str, Any]:
    """Values with one pool `p`."""
    return {"workers": {"p": {"accelerator": "cuda", "model": IMAGE, **more}}}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "accelerator that there can't be": (
        pool(accelerator="GPU"),
        "/workers/p/accelerator': 'GPU' does not match",
    ),
    "accelerator that is none": (pool(accelerator="auto"), "/workers/p/accelerator"),
    "accelerator that has no containers": (pool(accelerator="mps"), "/workers/p/accelerator"),
    "no accelerator": ({"workers": {"p": {"model": IMAGE}}}, "missing property 'accelerator'"),
    "no model key": ({"workers": {"p": {"accelerator": "cpu"}}}, "missing property 'model'"),
    "no model": (
        pool(model={"name": "m"}),
        "workers.p.model needs exactly one of image, pvc, hostPath, imageVolume, hub and s3; it has none.",
    ),
    "two models": (pool(model={**IMAGE, "pvc": {"claimName": "m"}}), "hub and s3; it has image and pvc."),
    "two adapters of one name": (
        pool(adapters=[{"name": "a", "path": "/x"}, {"name": "a", "path": "/y"}]),
        "workers.p.adapters: there are two adapters a: give one another name.",
    ),
    "a model's name of two lines": (pool(model={"name": "a\nb", **IMAGE}), "/workers/p/model/name"),
    "a variable that the chart sets": (pool(env={"POD_IP": "10.0.0.1"}), "invalid propertyName 'POD_IP'"),
    "a resource of another vendor": (
        pool(resource="amd.com/gpu"),
        "workers.p: the accelerator cuda does not use the resource amd.com/gpu; it takes one such as nvidia.com/gpu.",
    ),
    "a device for the CPU": (
        pool(accelerator="cpu", resource="nvidia.com/gpu"),
        "workers.p: the accelerator cpu does not use the resource nvidia.com/gpu; it takes none.",
    ),
    "another vendor's limits": (
        pool(accelerator="hygon", resources={"limits": {"cambricon.com/mlu": 1}}),
        "the accelerator hygon does not use the resource cambricon.com/mlu",
    ),
    "the device as a limit": (pool(resources={"limits": {"nvidia.com/gpu": 2}}), "leave nvidia.com/gpu out"),
    "the device as a request": (pool(resources={"requests": {"nvidia.com/gpu": 2}}), "leave nvidia.com/gpu out"),
    "no device": (pool(resource=""), "workers.p.resource: the accelerator cuda needs a resource"),
    "negative replicas": (pool(replicas=-1), "/workers/p/replicas': minimum: got -1, want 0"),
    "no gateways": ({"gateway": {"replicas": 0}}, "/gateway/replicas': minimum: got 0, want 1"),
    "unknown key": ({"gatway": {}}, "additional properties 'gatway' not allowed"),
    "unknown key of a pool": (pool(replica=1), "at '/workers/p': additional properties 'replica' not allowed"),
    "unknown key of a model": (pool(model={**IMAGE, "pvcs": {}}), "additional properties 'pvcs' not allowed"),
    "unknown option": (pool(options={"blocks": 1}), "additional properties 'blocks' not allowed"),
    "pool name": ({"workers": {"My_Pool": {"accelerator": "cpu", "model": IMAGE}}}, "'My_Pool' does not match pattern"),
    "path that climbs": (pool(model={"pvc": {"claimName": "m", "path": "../etc"}}), "/workers/p/model/pvc/path"),
    "hub repository": (pool(model={"hub": {"repository": "qwen3"}}), "/workers/p/model/hub/repository"),
    "digest": ({"image": {"digests": {"gateway": "sha256:12"}}}, "/image/digests/gateway"),
    "digest of no image": ({"image": {"digests": {"worker-mps": DIGEST}}}, "'worker-mps'"),
    "quantity": (pool(resources={"requests": {"memory": "lots"}}), "/workers/p/resources/requests/memory"),
    "owner": (pool(autoscaling={"owner": "me"}), "value must be one of 'none', 'scheduler', 'hpa', 'keda'"),
    "replicas and an owner": (
        pool(replicas=3, autoscaling={"owner": "hpa"}),
        "workers.p.replicas would do nothing, because hpa sets the number of workers: leave it out.",
    ),
    "replicas of a DaemonSet": (
        pool(replicas=3, kind="DaemonSet"),
        "workers.p.replicas would do nothing, because there is one worker per node: leave it out.",
    ),
    "cache of what is not fetched": (
        pool(model={**IMAGE, "cache": {"claimName": "c"}}),
        "workers.p.model.cache is for models from hub or s3, not from image: leave it out.",
    ),
    "two caches": (
        pool(model={"hub": {"repository": "a/b"}, "cache": {"claimName": "c", "hostPath": "/c"}}),
        "workers.p.model.cache takes one of claimName, hostPath and sizeLimit.",
    ),
    "claim without persistence": (
        {"scheduler": {"persistence": {"existingClaim": "c"}}},
        "scheduler.persistence.enabled is false, so that existingClaim would do nothing",
    ),
    "label of the chart's own": (
        pool(podLabels={"app.kubernetes.io/name": "x"}),
        "invalid propertyName 'app.kubernetes.io/name'",
    ),
    "label that is none": ({"gateway": {"podLabels": {"team": "a team"}}}, "/gateway/podLabels/team"),
    "volume of the chart's own": (
        pool(volumes=[{"name": "tmp", "emptyDir": {}}]),
        "workers.p.volumes: the pod has a volume tmp already: give yours another name.",
    ),
    "mount of no volume": (
        pool(volumeMounts=[{"name": "ca", "mountPath": "/ca"}]),
        "workers.p.volumeMounts: there is no volume ca in volumes.",
    ),
    "negative memory": (pool(resources={"limits": {"memory": -1}}), "/workers/p/resources/limits/memory': minimum"),
    "bounds": (pool(autoscaling={"owner": "hpa", "minReplicas": 5}), "minReplicas is more than maxReplicas"),
    "a model that no hpa finds": (
        pool(autoscaling={"owner": "hpa"}, model={**IMAGE, "name": "meta/m"}),
        "workers.p.model.name: an hpa finds the metrics of no model named meta/m, since the name is no value",
    ),
    "an hpa that looks back for a day": (
        pool(autoscaling={"owner": "hpa", "downSeconds": 86400}),
        "workers.p.autoscaling: downSeconds must be 3600 or less with hpa",
    ),
    "none with an hpa": (
        pool(autoscaling={"owner": "hpa", "minReplicas": 0}),
        "workers.p.autoscaling: minReplicas must be 1 or more with hpa",
    ),
    "scheduler's bounds": (
        pool(autoscaling={"owner": "scheduler", "minReplicas": 5}),
        "minReplicas is more than maxReplicas",
    ),
    "share of a pool alone": (
        pool(trafficPercent=90),
        "workers: the trafficPercent of the pools of model p (p) must add up to 100.",
    ),
    "shares that do not add up": (
        pools_of_one(90, 20),
        "workers: the trafficPercent of the pools of model m (a, b) must add up to 100.",
    ),
    "a share of one pool of two": (
        pools_of_one(100, None),
        "workers: the trafficPercent of the pools of model m (a, b) must add up to 100.",
    ),
    "role that there is not": (
        pool(role="draft"),
        "/workers/p/role': value must be one of 'both', 'prefill', 'decode'",
    ),
    "share that is no percent": (pool(trafficPercent=101), "/workers/p/trafficPercent': maximum"),
    "scaled DaemonSet": (pool(kind="DaemonSet", autoscaling={"owner": "hpa"}), "a DaemonSet has one worker per node"),
    "keda without Prometheus": (pool(autoscaling={"owner": "keda"}), "keda needs prometheus"),
    "TLS without a certificate": (
        {"tls": {"enabled": True}},
        "tls.enabled needs either tls.existingSecret or tls.certManager.enabled.",
    ),
    "TLS inside without certificates": (
        {"tls": {"internal": {"enabled": True, "existingSecrets": {"worker": "w"}}}},
        "tls.internal.enabled needs either tls.internal.existingSecrets of gateway, scheduler, worker, or",
    ),
    "TLS inside without an issuer": (
        {"tls": {"internal": {"enabled": True, "certManager": {"enabled": True}}}},
        "tls.internal.certManager.enabled needs tls.internal.certManager.issuerRef.name.",
    ),
    "certificates inside without TLS": (
        {"tls": {"internal": {"existingSecrets": {"worker": "w"}}}},
        "tls.internal.enabled is false",
    ),
    "no generation of keys": ({"fleetKeys": {"generation": 0}}, "/fleetKeys/generation"),
    "TLS inside without the console's certificate": (
        {
            "console": {"enabled": True},
            "tls": {
                "internal": {"enabled": True, "existingSecrets": dict.fromkeys(("gateway", "scheduler", "worker"), "x")}
            },
        },
        "tls.internal.existingSecrets of gateway, scheduler, worker, operator",
    ),
    "console without keys": (
        {"console": {"enabled": True}, "auth": {"enabled": False}},
        "console.enabled needs auth.enabled: without keys whoever reaches the console could deploy and undeploy.",
    ),
    "console below no path": ({"console": {"rootPath": "console"}}, "rootPath"),
    "console of several pods": ({"console": {"replicas": 2}}, "replicas"),
    "certificate without TLS": ({"tls": {"existingSecret": "x"}}, "tls.enabled is false"),
    "keys twice": (
        {"auth": {"existingSecret": "x", "keys": [{"id": "a", "hash": "0" * 64}]}},
        "auth.keys and auth.tenants go into the Secret that the chart makes",
    ),
    "one id twice": (
        {"auth": {"keys": [{"id": "a", "hash": "0" * 64}, {"id": "a", "hash": "1" * 64}]}},
        "auth.keys: there are two keys with the id a: give one another id.",
    ),
    "id of the chart's own key": (
        {"auth": {"keys": [{"id": "first", "hash": "0" * 64}]}},
        "two keys with the id first, which the chart's own key has",
    ),
    "one key twice": (
        {"auth": {"keys": [{"id": "a", "hash": "0" * 64}, {"id": "b", "hash": "0" * 64}]}},
        "auth.keys: the key b has the hash of another one",
    ),
    "tenant without a key": (
        {"auth": {"tenants": [{"id": "b"}]}},
        "auth.tenants: no key belongs to tenant b: give one of auth.keys this tenant.",
    ),
    "tenant twice": ({"auth": {"tenants": [{"id": "first"}, {"id": "first"}]}}, "tenant first is named twice"),
    "name that begins with a digit": (
        {"fullnameOverride": "7b"},
        "The name 7b begins with a digit, and a Service's may not: give fullnameOverride.",
    ),
    "volume with a dot": (
        pool(volumes=[{"name": "ca.pem", "emptyDir": {}}]),
        "workers.p.volumes: ca.pem is no name of a volume; it takes up to 63 of a-z, 0-9 and -.",
    ),
    "key in the clear": ({"auth": {"keys": [{"id": "a", "hash": "pf-secret"}]}}, "/auth/keys/0/hash"),
    "routes without a Gateway": ({"gatewayApi": {"enabled": True}}, "gatewayApi.enabled needs gatewayApi.parentRefs"),
    "no Prometheus operator": (
        {"monitoring": {"enabled": True}},
        "monitoring needs the API monitoring.coreos.com/v1, which this cluster does not have",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    values, sentence = REFUSED[case]
    assert sentence in refusal(values)


def test_image_volumes_need_a_kubernetes_that_has_them() -> None:
    values = pool(model={"imageVolume": {"reference": "registry/model:1"}})
    said = refusal(values, "--kube-version", "1.32.0")
    assert "workers.p.model.imageVolume needs Kubernetes 1.33 or newer; this is v1.32.0." in said


def test_an_older_kubernetes_is_refused() -> None:
    assert "incompatible with Kubernetes v1.29.0" in refusal({}, "--kube-version", "1.29.0")
