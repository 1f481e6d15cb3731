"""What can be switched on, and what is given for images, names and security."""

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from tests.support.helm_chart import (
    CHART,
    OPERATOR_APIS,
    Object,
    containers,
    find,
    needs_helm,
    of_kind,
    pod_of,
    pods,
    release,
    rendered,
)

from polyfleet.scheduler.config import PoolConfig, autoscaling_of
from polyfleet.v1 import fleet_pb2 as pb

pytestmark = needs_helm
APIS = [word for api in OPERATOR_APIS for word in ("--api-versions", api)]


def images(objects: list[Object]) -> set[str]:
    return {each["image"] for _, pod in pods(objects) for each in containers(pod)}


def test_an_hpa_follows_kv_use_and_queue_time() -> None:
    scaler = find(release("mixed"), "HorizontalPodAutoscaler", "polyfleet-worker-amd")["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (1, 4)
    use, queue = scaler["metrics"]
    assert use["pods"]["metric"]["name"] == "polyfleet_kv_cache_usage_ratio"
    assert use["pods"]["target"] == {"type": "AverageValue", "averageValue": "800m"}
    assert queue["external"]["metric"]["selector"]["matchLabels"] == {
        "namespace": "llm",
        "model": "smollm2-1.7b-instruct",
    }
    assert queue["external"]["target"] == {"type": "Value", "value": "1000m"}


def test_the_scheduler_is_told_how_pools_of_one_model_share_its_requests() -> None:
    pool = {"accelerator": "cuda", "model": {"name": "m", "image": {"path": "/m"}}}
    workers = {name: {**pool, "trafficPercent": percent} for name, percent in (("a", 100), ("b", 0))}
    config = find(rendered(values={"workers": workers}), "ConfigMap", "polyfleet-scheduler")["data"]["scheduler.yaml"]
    pools = msgspec.convert(yaml.safe_load(config)["scheduler"]["pools"], dict[str, PoolConfig])
    assert pools == {name: PoolConfig("m", "cuda", traffic_percent=percent) for name, percent in (("a", 100), ("b", 0))}


def test_the_scheduler_may_set_the_replicas_of_the_pools_that_it_owns_and_do_nothing_else() -> None:
    image = {"name": "m", "image": {"path": "/m"}}
    aims = {"owner": "scheduler", "minReplicas": 0, "maxReplicas": 3, "idleSeconds": 600}
    mine = {"accelerator": "cpu", "model": image, "autoscaling": aims}
    objects = rendered(values={"workers": {"a": mine, "b": {"accelerator": "cpu", "model": image}}})
    (rule,) = find(objects, "Role", "polyfleet-scheduler")["rules"]
    assert rule == {
        "apiGroups": ["apps"],
        "resources": ["deployments/scale"],
        "resourceNames": ["polyfleet-worker-a"],
        "verbs": ["get", "patch"],
    }
    binding = find(objects, "RoleBinding", "polyfleet-scheduler")
    with_tokens = [
        pod["serviceAccountName"] for _, pod in pods(objects) if "serviceAccountToken" in json.dumps(pod["volumes"])
    ]
    assert with_tokens == [binding["subjects"][0]["name"]]
    text = find(objects, "ConfigMap", "polyfleet-scheduler")["data"]["scheduler.yaml"]
    pools = yaml.safe_load(text)["scheduler"]["pools"]
    assert "autoscaling" not in pools["b"]
    wishes = msgspec.convert(pools, dict[str, PoolConfig])
    assert autoscaling_of(wishes["a"]) == pb.Autoscaling(
        min_workers=0, max_workers=3, queue_seconds=1, kv_use=0.8, idle_seconds=600, down_seconds=300
    )
    assert wishes["a"].kubernetes_deployment == find(objects, "Deployment", "polyfleet-worker-a")["metadata"]["name"]
    policy = find(objects, "NetworkPolicy", "polyfleet-scheduler")["spec"]["egress"]
    assert {"ports": [{"protocol": "TCP", "port": port} for port in (443, 6443)]} in policy
    assert not of_kind(rendered(), "Role")


def test_keda_asks_prometheus_for_the_same() -> None:
    scaler = find(release("mixed"), "ScaledObject", "polyfleet-worker-nvidia")["spec"]
    assert (scaler["minReplicaCount"], scaler["maxReplicaCount"]) == (2, 8)
    use, queue = (each["metadata"] for each in scaler["triggers"])
    assert use["query"] == (
        'sum(polyfleet_kv_cache_usage_ratio{namespace="llm",pod=~"polyfleet-worker-nvidia-[a-z0-9]+-[a-z0-9]+"})'
    )
    assert use["threshold"] == "0.8"
    assert queue["query"] == (
        "histogram_quantile(0.9, sum by (le) "
        '(rate(polyfleet_queue_time_seconds_bucket{namespace="llm",model="smollm2-1.7b-instruct"}[2m]))) > 0'
    )


def test_prometheus_finds_every_process_once() -> None:
    objects = release("mixed")
    monitor = find(objects, "PodMonitor", "polyfleet-pods")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert not of_kind(objects, "ServiceMonitor")
    selector = monitor["spec"]["selector"]
    (wanted,) = selector["matchExpressions"]
    for each in of_kind(objects, "Deployment", "DaemonSet"):
        labels = each["spec"]["template"]["metadata"]["labels"]
        assert labels.items() >= selector["matchLabels"].items()
        assert labels[wanted["key"]] in wanted["values"]
        names = [port["name"] for part in containers(pod_of(each)) for port in part.get("ports", [])]
        assert names.count("metrics") == 1
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == "metrics"
    assert endpoint["relabelings"] == [{"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}], (
        "dashboards show devices by node"
    )


def test_dashboards_and_rules_come_from_files(tmp_path: Path) -> None:
    chart = tmp_path / "polyfleet"
    shutil.copytree(CHART, chart)
    for folder in ("dashboards", "rules"):
        shutil.rmtree(chart / folder, ignore_errors=True)
        (chart / folder).mkdir()
    dashboard = '{"title": "{{ label }}"}\n'
    (chart / "dashboards" / "overview.json").write_text(dashboard)
    rule = {"alert": "Down", "expr": "up == 0", "annotations": {"summary": "{{ $labels.pod }} is down"}}
    (chart / "rules" / "alerts.yaml").write_text(yaml.safe_dump({"groups": [{"name": "up", "rules": [rule]}]}))
    objects = rendered(*APIS, values={"monitoring": {"rules": True, "dashboards": True}}, chart=chart)
    shown = find(objects, "ConfigMap", "polyfleet-dashboard-overview")
    assert shown["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert shown["data"] == {"polyfleet-overview.json": dashboard}
    rules = find(objects, "PrometheusRule", "polyfleet-rules-alerts")
    assert rules["spec"]["groups"][0]["rules"] == [rule]
    assert not of_kind(rendered(chart=chart), "PrometheusRule")


def test_routes_lead_to_the_gateway() -> None:
    objects = release("high-availability")
    ports = {port["port"] for port in find(objects, "Service", "polyfleet-gateway")["spec"]["ports"]}
    for kind, port in (("HTTPRoute", 8000), ("GRPCRoute", 50051)):
        route = find(objects, kind, "polyfleet-gateway")["spec"]
        assert route["parentRefs"] == [{"name": "public", "namespace": "gateways"}]
        assert route["hostnames"] == ["llm.example.com"]
        (rule,) = route["rules"]
        assert rule["backendRefs"] == [{"name": "polyfleet-gateway", "port": port}]
        assert port in ports
    http = find(objects, "HTTPRoute", "polyfleet-gateway")["spec"]["rules"][0]
    assert [each["path"]["value"] for each in http["matches"]] == ["/v1"]  # /metrics stays inside


def test_a_route_leads_to_the_console_below_its_path() -> None:
    route = find(release("high-availability"), "HTTPRoute", "polyfleet-console")["spec"]
    assert route["hostnames"] == ["fleet.example.com"]
    (rule,) = route["rules"]
    assert rule["backendRefs"] == [{"name": "polyfleet-console", "port": 8080}]
    assert (rule["matches"][0]["path"]["value"], "filters" in rule) == ("/", False)
    gateway_api = {"enabled": True, "parentRefs": [{"name": "public"}], "hostnames": ["llm.example.com"]}
    below = {"console": {"enabled": True, "rootPath": "/console"}, "gatewayApi": gateway_api}
    route = find(rendered(*APIS, values=below), "HTTPRoute", "polyfleet-console")["spec"]
    (rule,) = route["rules"]
    assert (route["hostnames"], rule["matches"][0]["path"]["value"]) == (["llm.example.com"], "/console")
    assert rule["filters"][0]["urlRewrite"]["path"] == {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}
    (port,) = find(release("high-availability"), "Service", "polyfleet-console")["spec"]["ports"]
    assert (port["port"], port["appProtocol"]) == (8080, "https")


def test_cert_manager_makes_the_certificate_that_the_gateway_mounts() -> None:
    objects = release("high-availability")
    certificate = find(objects, "Certificate", "polyfleet-gateway")["spec"]
    volumes = {each["name"]: each for each in dict(pods(objects))["polyfleet-gateway"]["volumes"]}
    assert volumes["tls"]["secret"]["secretName"] == certificate["secretName"]
    assert certificate["issuerRef"] == {"name": "internal-ca", "kind": "ClusterIssuer"}
    assert {"polyfleet-gateway.llm.svc", "polyfleet-gateway-headless.llm.svc", "llm.example.com"} <= set(
        certificate["dnsNames"]
    )


@pytest.mark.parametrize(("name", "protocol"), [("defaults", "kubernetes.io/h2c"), ("high-availability", "https")])
def test_services_name_their_protocol(name: str, protocol: str) -> None:
    for service in ("polyfleet-gateway", "polyfleet-gateway-headless"):
        spec = find(release(name), "Service", service)["spec"]
        assert {port["name"]: port["appProtocol"] for port in spec["ports"]}["grpc"] == protocol
        assert (spec.get("clusterIP") == "None") is service.endswith("headless")


def test_the_scheduler_s_state_lies_on_its_volume() -> None:
    objects = release("high-availability")
    claim = find(objects, "PersistentVolumeClaim", "polyfleet-scheduler")
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert claim["spec"]["resources"] == {"requests": {"storage": "5Gi"}}
    volumes = dict(pods(objects))["polyfleet-scheduler"]["volumes"]
    assert {"name": "state", "persistentVolumeClaim": {"claimName": "polyfleet-scheduler"}} in volumes
    assert find(objects, "Deployment", "polyfleet-scheduler")["spec"]["strategy"] == {"type": "Recreate"}
    given = rendered(values={"scheduler": {"persistence": {"enabled": True, "existingClaim": "mine"}}})
    assert not of_kind(given, "PersistentVolumeClaim")
    assert {"name": "state", "persistentVolumeClaim": {"claimName": "mine"}} in dict(pods(given))[
        "polyfleet-scheduler"
    ]["volumes"]


def test_images_come_from_one_registry() -> None:
    assert images(release("defaults")) == {
        f"localhost/polyfleet/{name}:0.1.0" for name in ("gateway", "scheduler", "worker-cpu")
    }
    pinned = images(release("air-gapped"))
    assert len(pinned) == 4
    assert all(each.startswith("registry.intranet:5000/polyfleet/") and "@sha256:" in each for each in pinned)
    for _, pod in pods(release("air-gapped")):
        assert pod["imagePullSecrets"] == [{"name": "intranet"}]
    tagged = images(rendered(values={"image": {"tag": "next", "repository": "", "pullPolicy": "Always"}}))
    assert "localhost/gateway:next" in tagged


def test_long_names_are_cut_before_what_tells_them_apart() -> None:
    values: dict[str, Any] = {"fullnameOverride": "a-very-long-name-of-a-release-that-somebody-chose-once"}
    names = [each["metadata"]["name"] for each in rendered(values=values)]
    assert max(map(len, names)) <= 52
    assert {name.rsplit("-", 1)[1] for name in names} >= {"gateway", "headless", "scheduler", "cpu", "fleet", "test"}


def test_openshift_may_choose_the_user() -> None:
    given = rendered(values={"podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}})
    for _, pod in pods(given):
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & pod["securityContext"].keys()
        assert pod["securityContext"]["runAsNonRoot"] is True


def test_without_keys_the_gateway_says_so() -> None:
    objects = rendered(values={"auth": {"enabled": False}})
    assert "insecure_no_keys: true" in find(objects, "ConfigMap", "polyfleet-gateway")["data"]["gateway.yaml"]
    assert not [each for each in of_kind(objects, "Secret") if each["metadata"]["name"] == "polyfleet-keys"]
    assert "keys" not in [volume["name"] for _, pod in pods(objects) for volume in pod["volumes"]]


def test_settings_of_the_gateway_arrive() -> None:
    settings = {
        "limits": {"max_concurrent": 2_000_000, "queue_timeout": 0.5},
        "objectives": {"time_to_first_token": 5},
        "placement": {"tie_seconds": 0.05, "remaining_tokens": 64},
        "allowSpecialTokensInContent": True,
        "corsOrigins": ["https://app.example", "*"],
        "imageHosts": ["*.example.com", "http://minio:9000=10.0.0.0/8"],
        "service": {"type": "LoadBalancer", "annotations": {"a/b": "c"}},
        "preStopSeconds": 0,
        "generationConfig": "none",
        "env": {"HTTPS_PROXY": "http://proxy:3128"},
        "podLabels": {"team": "llm"},
        "podAnnotations": {"x": "y"},
    }
    objects = rendered(values={"gateway": settings, "longestStreamSeconds": 30, "logLevel": "debug"})
    config = yaml.safe_load(find(objects, "ConfigMap", "polyfleet-gateway")["data"]["gateway.yaml"])["gateway"]
    assert config["limits"] == {
        "max_concurrent": 2_000_000,
        "queue_timeout": 0.5,
        "max_request_seconds": 30,
        "drain_seconds": 30,
    }
    assert config["objectives"] == {"time_to_first_token": 5}
    assert config["placement"] == {"tie_seconds": 0.05, "remaining_tokens": 64}
    assert config["allow_special_tokens_in_content"] is True
    assert config["cors_origins"] == ["https://app.example", "*"]
    assert config["image_hosts"] == ["*.example.com", "http://minio:9000=10.0.0.0/8"]
    assert config["log_level"] == "debug"
    assert config["generation_config"] == "none"
    service = find(objects, "Service", "polyfleet-gateway")
    assert (service["spec"]["type"], service["metadata"]["annotations"]) == ("LoadBalancer", {"a/b": "c"})
    template = find(objects, "Deployment", "polyfleet-gateway")["spec"]["template"]
    assert template["metadata"]["labels"]["team"] == "llm"
    assert template["metadata"]["annotations"]["x"] == "y"
    (container,) = template["spec"]["containers"]
    assert "lifecycle" not in container
    assert {"name": "HTTPS_PROXY", "value": "http://proxy:3128"} in container["env"]


def test_arguments_and_variables_arrive_as_they_are() -> None:
    """Whatever YAML would make of them, and though Kubernetes fills in each $(NAME) and makes $$ one $."""
    odd = "/a #b: 'c' \"d\" $(POD_IP) $$e"
    pool = {
        "accelerator": "cpu",
        "model": {"name": odd, "image": {"path": odd}},
        "adapters": [{"name": "x", "path": odd}],
        "options": {"speculation": "draft", "draftModel": odd, "contextLength": 1_000_000, "loadStallTimeout": 0.5},
        "env": {"NO": "yes", "HOME": "/srv"},
    }
    container = pod_of(find(rendered(values={"workers": {"p": pool}}), "Deployment", "polyfleet-worker-p"))[
        "containers"
    ][0]
    args = {each.replace("$$", "$") for each in container["args"]}
    assert {f"--{name}={odd}" for name in ("model", "model-name", "adapter=x", "draft-model")} <= args
    assert {"--context-length=1000000", "--load-stall-timeout=0.5"} <= args
    assert {"name": "NO", "value": "yes"} in container["env"]
    assert [each["value"] for each in container["env"] if each["name"] == "HOME"] == ["/srv"]
