"""Dashboards and console lead to each other where values say where they are."""

import json
from typing import Any

import pytest
from tests.support.helm_chart import CHART, needs_helm, of_kind, refusal, rendered

pytestmark = needs_helm
ADDRESS = "https://models.example/console"


def boards(**links: Any) -> dict[str, dict[str, Any]]:
    """By file, what Grafana gets."""
    objects = rendered(values={"console": {"links": links}, "monitoring": {"dashboards": True}})
    found = [each for each in of_kind(objects, "ConfigMap") if "grafana_dashboard" in each["metadata"]["labels"]]
    return {name: json.loads(text) for each in found for name, text in each["data"].items()}


def test_dashboards_link_to_the_console() -> None:
    plain, linked = boards(), boards(console=ADDRESS)
    assert len(plain) == len(list((CHART / "dashboards").glob("*.json")))
    for name, board in linked.items():
        first, *others = board["links"]
        assert (first["type"], first["title"], first["url"]) == ("link", "Console", ADDRESS)
        assert board | {"links": others} == plain[name]


@pytest.mark.parametrize("name", ["console", "prometheus", "grafana", "runbooks"])
def test_an_address_that_is_none_is_refused(name: str) -> None:
    for address in ("models.example", 'https://a"b', "javascript:alert(1)"):
        assert name in refusal({"console": {"links": {name: address}}})
