"""Who reaches whom through the NetworkPolicies, evaluated as Kubernetes does."""

from typing import Any

import pytest
from tests.support.helm_chart import needs_helm, of_kind, release, rendered

pytestmark = needs_helm
Labels = dict[str, str]
OUTSIDER: Labels = {"app": "somebody"}
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


class Network:
    """The policies of a release in their namespace; OUTSIDER lives in another one."""

    def __init__(self, objects: list[dict[str, Any]]) -> None:
        self._policies = [each["spec"] for each in of_kind(objects, "NetworkPolicy")]

    def reaches(self, source: Labels, target: Labels, port: int) -> bool:
        """Whether both ends allow the connection."""
        return self._side(source, target, port, "egress") and self._side(target, source, port, "ingress")

    def _side(self, pod: Labels, peer: Labels, port: int, direction: str) -> bool:
        if pod is OUTSIDER:
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
    if "namespaceSelector" in each:
        return bool(each["namespaceSelector"] == {})
    return peer is not OUTSIDER and matches(each["podSelector"], peer)


@pytest.fixture(scope="module")
def network() -> Network:
    return Network(release("defaults"))


def test_requests_find_their_way(network: Network) -> None:
    for source, target, port in (
        (OUTSIDER, GATEWAY, 50051),
        (OUTSIDER, GATEWAY, 8000),
        (TEST, GATEWAY, 50051),
        (GATEWAY, WORKER, 50061),
        (GATEWAY, SCHEDULER, 50052),
        (WORKER, SCHEDULER, 50052),
        (SCHEDULER, WORKER, 50061),
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
        (OUTSIDER, SCHEDULER, 50052),
        (WORKER, WORKER, 50061),
        (WORKER, GATEWAY, 50051),
        (SCHEDULER, GATEWAY, 8000),
        (GATEWAY, OUTSIDER, 443),
        (WORKER, OUTSIDER, 443),
    ):
        assert not network.reaches(source, target, port)


def test_names_are_looked_up_and_metrics_read(network: Network) -> None:
    assert network.reaches(WORKER, OUTSIDER, 53)
    assert network.reaches(OUTSIDER, WORKER, 9100)
    assert network.reaches(OUTSIDER, SCHEDULER, 9102)


def test_callers_and_scrapers_can_be_named() -> None:
    network = Network(release("air-gapped"))
    for target, port in ((GATEWAY, 50051), (GATEWAY, 8000), (WORKER, 9100), (SCHEDULER, 9102)):
        assert not network.reaches(OUTSIDER, target, port)
    assert network.reaches(TEST, GATEWAY, 50051)


def test_only_pools_that_fetch_their_model_get_out() -> None:
    network = Network(release("domestic"))
    assert network.reaches(ours("worker", "ascend"), OUTSIDER, 443)
    assert not network.reaches(ours("worker", "ascend"), OUTSIDER, 80)
    assert not network.reaches(ours("worker", "other"), OUTSIDER, 443)
    assert not network.reaches(GATEWAY, OUTSIDER, 443)


def test_no_policy_when_switched_off() -> None:
    assert not of_kind(rendered(values={"networkPolicy": {"enabled": False}}), "NetworkPolicy")
