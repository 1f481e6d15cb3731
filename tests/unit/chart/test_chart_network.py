"""Who reaches whom through the NetworkPolicies, evaluated as Kubernetes does."""

from typing import Any

import pytest
from tests.support.helm_chart import containers, needs_helm, of_kind, pods, release, rendered

pytestmark = needs_helm
Labels = dict[str, str]
NAMESPACE = "llm"
OUTSIDER: Labels = {"app": "somebody"}
NEIGHBOUR: Labels = {"app": "a neighbour"}  # in the release's namespace
PROMETHEUS: Labels = {"app": "prometheus"}
ELSEWHERE = {"somebody": "default", "prometheus": "monitoring"}
METRICS = {"gateway": 9101, "scheduler": 9102, "worker": 9100}
OPEN = {50051, 8000, 50052, 50053, 50061, 50062, *METRICS.values()}  # what the processes listen on, beside Ray's
RAY = [6379, 6380, 6385, 6400, 6499]
OTHER_RAY = [8265, 10001, 44217]


def ours(component: str, pool: str = "") -> Labels:
    labels = {
        "app.kubernetes.io/name": "polyfleet",
        "app.kubernetes.io/instance": "polyfleet",
        "app.kubernetes.io/component": component,
    }
    return labels | ({"polyfleet/pool": pool} if pool else {})


GATEWAY, SCHEDULER, WORKER, TEST = ours("gateway"), ours("scheduler"), ours("worker", "cpu"), ours("test")
CONSOLE = ours("console")


class Network:
    """The policies of a release in their namespace; OUTSIDER and PROMETHEUS live in others."""

    def __init__(self, objects: list[dict[str, Any]]) -> None:
        self._policies = [each["spec"] for each in of_kind(objects, "NetworkPolicy")]

    def reaches(self, source: Labels, target: Labels, port: int) -> bool:
        """Whether both ends allow the connection."""
        return self._side(source, target, port, "egress") and self._side(target, source, port, "ingress")

    def _side(self, pod: Labels, peer: Labels, port: int, direction: str) -> bool:
        if pod in (OUTSIDER, NEIGHBOUR, PROMETHEUS):
            return True
        chosen = [each for each in self._policies if matches(each["podSelector"], pod)]
        assert any(direction.title() in each.get("policyTypes", []) for each in chosen), "not isolated"
        return any(allows(rule, peer, port, direction) for each in chosen for rule in each.get(direction, []))


def matches(selector: dict[str, Any], labels: Labels) -> bool:
    return bool(labels.items() >= selector.get("matchLabels", {}).items())


def allows(rule: dict[str, Any], peer: Labels, port: int, direction: str) -> bool:
    peers = rule.get("to" if direction == "egress" else "from")
    named = peers is None or any(is_peer(each, peer) for each in peers)
    ports = rule.get("ports")
    return named and (ports is None or any(each["port"] <= port <= each.get("endPort", each["port"]) for each in ports))


def is_peer(each: dict[str, Any], peer: Labels) -> bool:
    namespace = ELSEWHERE.get(peer.get("app", ""), NAMESPACE)
    if "namespaceSelector" in each:
        there = matches(each["namespaceSelector"], {"kubernetes.io/metadata.name": namespace})
    else:
        there = namespace == NAMESPACE
    return there and matches(each.get("podSelector", {}), peer)


@pytest.fixture(scope="module")
def network() -> Network:
    return Network(release("defaults"))


def test_requests_find_their_way(network: Network) -> None:
    for source, target, port in (
        (OUTSIDER, GATEWAY, 50051),
        (OUTSIDER, GATEWAY, 8000),
        (TEST, GATEWAY, 50051),
        (SCHEDULER, GATEWAY, 50051),
        (GATEWAY, GATEWAY, 50053),
        (GATEWAY, WORKER, 50061),
        (GATEWAY, SCHEDULER, 50052),
        (WORKER, SCHEDULER, 50052),
        (SCHEDULER, WORKER, 50061),
        (WORKER, WORKER, 50062),
    ):
        assert network.reaches(source, target, port)


@pytest.mark.parametrize("port", RAY)
def test_ray_is_open_between_head_and_nodes_and_to_nobody_else(network: Network, port: int) -> None:
    assert network.reaches(SCHEDULER, WORKER, port)
    assert network.reaches(WORKER, SCHEDULER, port)
    for source in (OUTSIDER, GATEWAY, TEST):
        assert not network.reaches(source, SCHEDULER, port)
        assert not network.reaches(source, WORKER, port)


@pytest.mark.parametrize("port", OTHER_RAY)
def test_what_else_ray_listens_on_is_open_to_nobody(network: Network, port: int) -> None:
    for source in (OUTSIDER, GATEWAY, TEST, WORKER):
        assert not network.reaches(source, SCHEDULER, port)


def test_the_rest_is_denied(network: Network) -> None:
    for source, target, port in (
        (OUTSIDER, WORKER, 50061),
        (GATEWAY, WORKER, 50062),
        (OUTSIDER, SCHEDULER, 50052),
        (WORKER, WORKER, 50061),
        (WORKER, GATEWAY, 50051),
        (WORKER, GATEWAY, 50053),
        (SCHEDULER, GATEWAY, 8000),
        (GATEWAY, OUTSIDER, 443),
        (WORKER, OUTSIDER, 443),
    ):
        assert not network.reaches(source, target, port)


def test_only_where_it_may_fetch_images_the_gateway_gets_out() -> None:
    hosts = {"gateway": {"imageHosts": ["images.example.com"]}}
    assert Network(rendered(values=hosts)).reaches(GATEWAY, OUTSIDER, 443)
    shut = {**hosts, "networkPolicy": {"imageEgress": []}}
    assert not Network(rendered(values=shut)).reaches(GATEWAY, OUTSIDER, 443)


def test_the_console_reaches_what_it_shows_and_nothing_else() -> None:
    callers = {"networkPolicy": {"gatewayFrom": ONE, "consoleFrom": ONE}, "console": {"enabled": True}}
    for values in ({"console": {"enabled": True}}, callers):
        network = Network(rendered(values=values))
        assert doors(network, CONSOLE) == {("gateway", 50051), ("scheduler", 50052)}
        assert network.reaches(NEIGHBOUR, CONSOLE, 8080)
        assert network.reaches(OUTSIDER, CONSOLE, 8080) is (values is not callers)
        for source in (GATEWAY, SCHEDULER, WORKER):
            assert not network.reaches(source, CONSOLE, 8080)
        assert not network.reaches(CONSOLE, OUTSIDER, 443)


def test_the_console_reaches_who_scrapes_where_a_prometheus_is_named() -> None:
    console = {"enabled": True, "links": {"prometheus": "http://prometheus.monitoring:9090"}}
    scrapers = {"metricsFrom": [{"podSelector": {"matchLabels": NEIGHBOUR}}]}
    for values, reached in (
        ({"console": console, "networkPolicy": scrapers}, True),
        ({"console": console}, False),
        ({"console": {"enabled": True}, "networkPolicy": scrapers}, False),
    ):
        network = Network(rendered(values=values))
        assert network.reaches(CONSOLE, NEIGHBOUR, 9090) is reached
        assert not network.reaches(CONSOLE, OUTSIDER, 9090)


def test_names_are_looked_up(network: Network) -> None:
    assert network.reaches(WORKER, OUTSIDER, 53)


def doors(network: Network, source: Labels) -> set[tuple[str, int]]:
    """What of the release a pod reaches: component and port."""
    return {
        (target["app.kubernetes.io/component"], port)
        for target in (GATEWAY, SCHEDULER, WORKER)
        for port in OPEN
        if network.reaches(source, target, port)
    }


API = {("gateway", 50051), ("gateway", 8000)}
ONE = [{"podSelector": {"matchLabels": NEIGHBOUR}}]
MONITORING = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]


@pytest.mark.parametrize(
    ("policy", "outsider", "neighbour", "prometheus"),
    [
        ({}, API, API, API),
        ({"gatewayFrom": ONE}, set(), API, set()),
        ({"metricsFrom": MONITORING}, API, API, API | METRICS.items()),
        ({"gatewayFrom": ONE, "metricsFrom": MONITORING}, set(), API, set(METRICS.items())),
        ({"gatewayFrom": MONITORING, "metricsFrom": ONE}, set(), set(METRICS.items()), API),
        ({"gatewayFrom": ONE, "metricsFrom": []}, set(), API, set()),
    ],
    ids=["anybody", "callers", "scrapers", "both", "the other way round", "no scraper"],
)
def test_the_api_is_for_callers_and_metrics_are_for_scrapers(
    policy: dict[str, Any], outsider: set[Any], neighbour: set[Any], prometheus: set[Any]
) -> None:
    network = Network(rendered(values={"networkPolicy": policy}))
    assert doors(network, OUTSIDER) == outsider
    assert doors(network, NEIGHBOUR) == neighbour
    assert doors(network, PROMETHEUS) == prometheus
    assert doors(network, TEST) == {("gateway", 50051)}


def test_ports_that_lead_to_agents_are_open_to_the_fleet_and_to_scrapers() -> None:
    port = 40_123  # each agent's is any free one
    told = {"gateway": {"agents": True}, "networkPolicy": {"metricsFrom": MONITORING, "gatewayFrom": ONE}}
    for values, reaching in (
        ({}, ()),
        ({"gateway": {"agents": True}}, (GATEWAY, SCHEDULER)),
        (told, (GATEWAY, SCHEDULER, PROMETHEUS)),
        ({"networkPolicy": {"metricsFrom": MONITORING}}, ()),
    ):
        network = Network(rendered(values=values))
        everybody = (GATEWAY, SCHEDULER, PROMETHEUS, WORKER, TEST, NEIGHBOUR, OUTSIDER)
        assert tuple(each for each in everybody if network.reaches(each, GATEWAY, port)) == reaching
        assert not any(network.reaches(each, target, port) for each in everybody for target in (SCHEDULER, WORKER))


def test_the_ports_of_the_policies_are_those_that_pods_open() -> None:
    declared = {
        (each["name"].replace("ray-node", "worker"), port["containerPort"])
        for _, pod in pods(release("defaults"))
        for each in containers(pod)
        for port in each.get("ports", [])
    }
    assert {port for _, port in declared} == OPEN | {6379}
    assert declared >= METRICS.items()


def test_no_service_offers_metrics_where_it_offers_the_api() -> None:
    for service in of_kind(release("high-availability"), "Service"):
        ports = {port["port"] for port in service["spec"]["ports"]}
        assert not (ports & {50051, 8000} and ports & set(METRICS.values())), service["metadata"]["name"]


def test_examples_name_who_scrapes() -> None:
    for name in ("air-gapped", "mixed", "high-availability"):
        network = Network(release(name))
        assert network.reaches(PROMETHEUS, GATEWAY, 9101)
        assert not network.reaches(OUTSIDER, GATEWAY, 9101)


def test_only_pools_that_fetch_their_model_get_out() -> None:
    network = Network(release("domestic"))
    assert network.reaches(ours("worker", "ascend"), OUTSIDER, 443)
    assert not network.reaches(ours("worker", "ascend"), OUTSIDER, 80)
    assert not network.reaches(ours("worker", "other"), OUTSIDER, 443)
    assert not network.reaches(GATEWAY, OUTSIDER, 443)


def test_no_policy_when_switched_off() -> None:
    assert not of_kind(rendered(values={"networkPolicy": {"enabled": False}}), "NetworkPolicy")
