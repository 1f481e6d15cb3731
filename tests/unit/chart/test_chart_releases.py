"""What holds for every release: the chart without values, and each example."""

import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.support.helm_chart import (
    CHART,
    OPERATOR_APIS,
    RELEASES,
    containers,
    find,
    needs_helm,
    of_kind,
    pod_of,
    pods,
    release,
    rendered,
)

pytestmark = needs_helm
every_release = pytest.mark.parametrize("name", RELEASES)
# The pools whose pods Pod Security `restricted` refuses, and what for.
EXCEPTIONS = {
    ("nvidia", "polyfleet-worker-nvidia"): {"hostPath"},  # the model's cache
    ("domestic", "polyfleet-worker-cambricon"): {"hostPath"},  # cnmon
    ("domestic", "polyfleet-worker-hygon"): {"hostPath"},  # /opt/hyhal
    ("air-gapped", "polyfleet-worker-cuda"): {"image"},  # in no list of `restricted`
}
RESTRICTED_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim"}
RESTRICTED_VOLUMES |= {"projected", "secret"}


@every_release
def test_objects_have_names_that_fit_and_all_labels(name: str) -> None:
    objects = release(name)
    named = Counter((each["kind"], each["metadata"]["name"]) for each in objects)
    assert max(named.values()) == 1
    for each in objects:
        metadata = each["metadata"]
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?", metadata["name"])
        assert metadata["namespace"] == "llm"
        labels = {key.removeprefix("app.kubernetes.io/") for key in metadata["labels"]}
        assert labels >= {"name", "instance", "version", "component", "part-of", "managed-by", "helm.sh/chart"}


@every_release
def test_selectors_stay_as_they_are_and_choose_exactly_their_own_pods(name: str) -> None:
    workloads = of_kind(release(name), "Deployment", "DaemonSet")
    for workload in workloads:
        selector = workload["spec"]["selector"]["matchLabels"]
        keys = {f"app.kubernetes.io/{key}" for key in ("name", "instance", "component")}  # immutable in a cluster
        assert selector.keys() == keys | ({"polyfleet/pool"} if "-worker-" in workload["metadata"]["name"] else set())
        chosen = [each["metadata"]["name"] for each in workloads if _labels(each).items() >= selector.items()]
        assert chosen == [workload["metadata"]["name"]]


@every_release
def test_services_and_budgets_choose_pods_that_have_their_ports(name: str) -> None:
    objects = release(name)
    workloads = of_kind(objects, "Deployment", "DaemonSet")
    for each in of_kind(objects, "Service"):
        (chosen,) = (found for found in workloads if _labels(found).items() >= each["spec"]["selector"].items())
        ports = {port["name"] for one in pod_of(chosen)["containers"] for port in one.get("ports", [])}
        assert {port["targetPort"] for port in each["spec"]["ports"]} <= ports
    for each in of_kind(objects, "PodDisruptionBudget"):
        selector = each["spec"]["selector"]["matchLabels"]
        (chosen,) = (found for found in workloads if _labels(found).items() >= selector.items())
        assert chosen["kind"] == "Deployment"  # budgets know nothing of DaemonSets


@every_release
def test_pods_are_restricted_but_for_the_listed_exceptions(name: str) -> None:
    for pod_name, pod in pods(release(name)):
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        for each in containers(pod):
            security = each["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert security["readOnlyRootFilesystem"] is True
        kinds = {kind for volume in pod["volumes"] for kind in volume if kind != "name"}
        assert kinds - RESTRICTED_VOLUMES == EXCEPTIONS.get((name, pod_name), set())


@every_release
def test_every_mount_has_its_volume_and_every_volume_its_object(name: str) -> None:
    objects = release(name)
    ours = {(each["kind"], each["metadata"]["name"]) for each in objects}
    for _, pod in pods(objects):
        mounted = {mount["name"] for each in containers(pod) for mount in each["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
        for volume in pod["volumes"]:
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in ours
        for each in containers(pod):
            paths = [mount["mountPath"] for mount in each["volumeMounts"]]
            assert len(paths) == len(set(paths))
            assert "/tmp" in paths or each["name"] == "fetch"  # roots are read-only


@every_release
def test_long_running_containers_are_probed_and_bounded(name: str) -> None:
    for workload in of_kind(release(name), "Deployment", "DaemonSet"):
        for each in pod_of(workload)["containers"]:
            assert each["resources"]["limits"]["memory"]
            assert each["resources"]["requests"].keys() >= {"cpu", "memory"}
            if each["name"] == "ray-node":  # of which the pod's readiness must not depend
                assert not [key for key in each if key.endswith("Probe")]
            else:
                assert each.keys() >= {"startupProbe", "readinessProbe", "livenessProbe"}
                assert each["readinessProbe"]["failureThreshold"] == 2
                assert all(each[key]["timeoutSeconds"] == 5 for key in each if key.endswith("Probe"))


@every_release
def test_pods_that_serve_get_more_time_than_the_longest_stream(name: str) -> None:
    objects = release(name)
    longest = _longest_stream(objects)
    for workload in of_kind(objects, "Deployment", "DaemonSet"):
        pod = pod_of(workload)
        hook = pod["containers"][0].get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        if workload["metadata"]["name"] not in ("polyfleet-scheduler", "polyfleet-console"):
            assert pod["terminationGracePeriodSeconds"] >= longest + hook + 10
    for _, pod in _workers(objects):
        assert f"--drain-timeout={longest}" in pod["containers"][0]["args"]


@every_release
def test_workers_take_no_replicas_that_somebody_else_owns(name: str) -> None:
    objects = release(name)
    scalers = of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject")
    owned = {each["spec"]["scaleTargetRef"]["name"] for each in scalers}
    for workload in of_kind(objects, "Deployment", "DaemonSet"):
        owns = workload["kind"] == "Deployment" and workload["metadata"]["name"] not in owned
        assert ("replicas" in workload["spec"]) is owns
    assert owned == ({"polyfleet-worker-nvidia", "polyfleet-worker-amd"} if name == "mixed" else set())


def test_fewer_workers_are_asked_for_when_down_seconds_say() -> None:
    pools = {
        owner: {
            "accelerator": "cpu",
            "model": {"image": {"path": "/m"}},
            "autoscaling": {"owner": owner, "downSeconds": 90, "prometheus": "http://prometheus:9090"},
        }
        for owner in ("hpa", "keda")
    }
    apis = [word for api in OPERATOR_APIS for word in ("--api-versions", api)]
    objects = rendered(*apis, values={"workers": pools})
    hpa = find(objects, "HorizontalPodAutoscaler", "polyfleet-worker-hpa")["spec"]
    keda = find(objects, "ScaledObject", "polyfleet-worker-keda")["spec"]
    both = (hpa["behavior"], keda["advanced"]["horizontalPodAutoscalerConfig"]["behavior"])
    assert both == ({"scaleDown": {"stabilizationWindowSeconds": 90}},) * 2


@every_release
def test_nothing_may_call_the_kubernetes_api(name: str) -> None:
    objects = release(name)
    assert not of_kind(objects, "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding")
    assert all(each["automountServiceAccountToken"] is False for each in of_kind(objects, "ServiceAccount"))


@every_release
def test_secrets_are_in_secrets_only(name: str) -> None:
    for each in of_kind(release(name), "ConfigMap"):
        assert not re.search(r"(?i)(password|secret-access-key|api-key)\s*[:=]\s*\S", str(each["data"]))
    for _, pod in pods(release(name)):
        for each in containers(pod):
            assert not [entry for entry in each.get("env", []) if "secretKeyRef" in str(entry)]


@every_release
def test_the_helm_test_asks_the_gateway_for_a_model_that_is_served(name: str) -> None:
    objects = release(name)
    test = find(objects, "Pod", "polyfleet-test")
    assert test["metadata"]["annotations"]["helm.sh/hook"] == "test"
    arguments = test["spec"]["containers"][0]["args"]
    assert "--gateway=polyfleet-gateway.llm.svc:50051" in arguments
    (model,) = (word.partition("=")[2] for word in arguments if word.startswith("--model="))
    assert f"--model-name={model}" in [word for _, pod in _workers(objects) for word in pod["containers"][0]["args"]]


def _labels(workload: dict[str, Any]) -> dict[str, str]:
    labels: dict[str, str] = workload["spec"]["template"]["metadata"]["labels"]
    return labels


def _workers(objects: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    return [(name, pod) for name, pod in pods(objects) if "-worker-" in name]


def _longest_stream(objects: list[dict[str, Any]]) -> int:
    config = find(objects, "ConfigMap", "polyfleet-gateway")["data"]["gateway.yaml"]
    found = re.search(r"max_request_seconds: (\d+)", config)
    assert found is not None
    return int(found[1])


def test_pods_start_anew_for_another_configuration_and_not_for_another_chart(tmp_path: Path) -> None:
    def templates(*arguments: str, chart: Path = CHART) -> dict[str, Any]:
        objects = of_kind(rendered(*arguments, chart=chart), "Deployment", "DaemonSet")
        return {each["metadata"]["labels"]["app.kubernetes.io/component"]: each["spec"]["template"] for each in objects}

    newer = tmp_path / "polyfleet"
    shutil.copytree(CHART, newer)
    manifest = newer / "Chart.yaml"
    manifest.write_text(re.sub(r"(?m)^version: .*", "version: 99.0.0", manifest.read_text()))
    before = templates()
    assert templates(chart=newer) == before
    louder = templates("--set", "logLevel=debug")
    assert {name for name in before if louder[name] != before[name]} >= {"gateway", "scheduler"}
