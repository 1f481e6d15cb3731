"""Every dashboard and every alert, against a real Prometheus that scrapes a stack with a worker of every vendor."""

import json
import math
import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.monitored_fleet import KEY_ID, MonitoredFleet, monitored_fleet
from tests.support.monitoring import alerts, needs_prometheus
from tests.support.prometheus import SCRAPE_SECONDS, Series
from tests.support.serve_process import wait_for
from tests.support.vendor_workers import LIAR, MACHINES

from polyfleet.cli.stack.settings import MODEL_NAME

pytestmark = needs_prometheus

ROOT = Path(__file__).parents[3]
BOARDS = sorted((ROOT / "charts" / "polyfleet" / "dashboards").glob("*.json"))
INTERVAL_SECONDS = 15  # between the points of a panel
RANGE_SECONDS = 6 * 3600
SELECTOR = re.compile(r"polyfleet[_:][\w:]+(?:\{[^}]*\})?")
# Queries that find nothing in this stack, each with the reason. What counts events has had some.
NO_EYES = "no model of this stack sees images, so none is fetched"
RIGHTLY_EMPTY = {f"requests: Time to fetch images by result {query}": NO_EYES for query in "AB"}
SERIES_SECONDS = 30.0  # for an alert's series to come, which have all been there before the tests begin
# What stands about the fleet's worn device and its worker that lies. Those that must hold for minutes may be pending.
CAUSED = {
    "PolyfleetDeviceFault",
    "PolyfleetDeviceMemoryWorn",
    "PolyfleetDeviceLinkNarrow",
    "PolyfleetWorkerQuarantined",
}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MonitoredFleet]:
    with monitored_fleet(tmp_path_factory.mktemp("monitored")) as monitored:
        # A rate needs two points behind the event.
        time.sleep(3 * SCRAPE_SECONDS)
        yield monitored


def targets() -> list[Any]:
    """Every query of every dashboard's file, with its panel."""
    return [
        pytest.param(target, id=f"{path.stem}: {panel['title']} {target['refId']}")
        for path in BOARDS
        for panel in json.loads(path.read_text())["panels"]
        for target in panel.get("targets", ())
    ]


def substituted(expr: str, **chosen: str) -> str:
    """The query as Grafana sends it, with these values of variables; All is `.*`."""
    rate_interval = max(INTERVAL_SECONDS + SCRAPE_SECONDS, 4 * SCRAPE_SECONDS)
    expr = expr.replace("$__rate_interval", f"{rate_interval}s").replace("$__range", f"{RANGE_SECONDS}s")
    for name in ("cluster", "namespace", "model", "accelerator"):
        expr = expr.replace(f"${name}", chosen.get(name, ".*"))
    assert "$" not in expr, "an unknown variable"
    return expr


def asked(fleet: MonitoredFleet, target: Any, **chosen: str) -> Series:
    """What a panel would get."""
    expr, now = substituted(target["expr"], **chosen), time.time()
    if target["instant"]:
        return fleet.prometheus.query(expr)
    return fleet.prometheus.query_range(expr, now - INTERVAL_SECONDS, now, INTERVAL_SECONDS)


def numbers(found: Series) -> list[float]:
    """All values that are numbers."""
    points = [point for series in found for point in series.get("values", [series.get("value")])]
    return [value for _, text in points if math.isfinite(value := float(text))]


@pytest.mark.parametrize("target", targets())
def test_every_panel_has_data(target: Any, fleet: MonitoredFleet, request: pytest.FixtureRequest) -> None:
    found = numbers(asked(fleet, target))
    if request.node.callspec.id in RIGHTLY_EMPTY:
        assert not found, "it is not empty any more: take it off the list"
    else:
        assert found, substituted(target["expr"])


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: f"{rule['alert']} {rule['labels']['severity']}")
def test_every_alert_watches_series_that_are_there(rule: Any, fleet: MonitoredFleet) -> None:
    fleet.prometheus.query(rule["expr"])
    for selector in SELECTOR.findall(rule["expr"]):
        wait_for(partial(fleet.prometheus.query, selector), f"{selector} of {rule['alert']}", SERIES_SECONDS)


def test_rules_are_evaluated_and_only_what_was_caused_fires(fleet: MonitoredFleet) -> None:
    groups = fleet.prometheus.get("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert {rule["name"] for rule in rules} >= {rule["alert"] for rule in alerts()}
    assert [rule for rule in rules if rule["health"] != "ok" or rule.get("lastError")] == []
    states = {state: {rule["name"] for rule in rules if rule.get("state") == state} for state in ("pending", "firing")}
    assert states["firing"] <= CAUSED <= states["pending"] | states["firing"]
    assert "PolyfleetDeviceFault" in states["firing"]


def test_the_worn_device_and_the_worker_that_lies_are_named(fleet: MonitoredFleet) -> None:
    values = fleet.prometheus.values
    assert values('polyfleet_device_throttled{accelerator="cuda", reason="power_cap"}') == [1]
    assert values('sum(polyfleet_device_throttled{accelerator="cuda"})') == [1]
    assert values('polyfleet_device_pcie_lanes{accelerator="cuda"} / polyfleet_device_pcie_max_lanes') == [0.5]
    assert values('polyfleet_device_faults_total{accelerator="cuda", device="0", code="XID 63"}') == [1]
    assert values("polyfleet_worker_quarantined") == [1]
    assert values(f'polyfleet_worker_quarantined{{worker_id="w-{LIAR}", reason="prefill rate"}}') == [1]


def test_variables_offer_what_is_there(fleet: MonitoredFleet) -> None:
    def label_values(name: str) -> list[str]:
        return list(fleet.prometheus.get(f"label/{name}/values", **{"match[]": "polyfleet_workers"}))

    assert label_values("accelerator") == sorted([*MACHINES, "cpu"])
    assert set(label_values("model")) >= {MODEL_NAME, "fake"}
    assert label_values("cluster") == label_values("namespace") == []


@pytest.mark.parametrize("accelerator", MACHINES)
def test_every_vendors_devices_are_shown_in_the_same_units(accelerator: str, fleet: MonitoredFleet) -> None:
    board = json.loads((ROOT / "charts" / "polyfleet" / "dashboards" / "devices.json").read_text())
    panels = {panel["title"]: panel["targets"][0] for panel in board["panels"] if panel["type"] != "row"}

    def shown(title: str) -> list[float]:
        found = asked(fleet, panels[title], accelerator=accelerator)
        assert {series["metric"].get("accelerator", accelerator) for series in found} <= {accelerator}
        return numbers(found)

    assert shown("Devices by state").count(1) == 1
    assert all(0 <= value <= 1 for value in shown("Utilisation"))
    assert all(0 <= value <= 1 for value in shown("Memory in use"))
    if accelerator != "mps":  # Apple tells neither without root
        assert all(20 < value < 90 for value in shown("Temperature"))
        assert all(50 < value < 400 for value in shown("Power"))
        assert shown("Temperature")
        assert shown("Power")


def test_what_happened_is_counted(fleet: MonitoredFleet) -> None:
    values = fleet.prometheus.values
    (moved,) = values('polyfleet_migrations_total{result="resumed"}')
    assert moved in (1, 2, 3), "the request that was watched, and maybe those of the traffic"
    assert values(f'sum(polyfleet_cancellations_total{{model="{MODEL_NAME}"}}) >= 1')
    assert values('sum(polyfleet_requests_total{code="UNAUTHENTICATED"})') == [1]
    assert values('sum(polyfleet_slo_requests_total{model="fake", result="failed"})') == [1]
    assert values(f'polyfleet_key_requests_total{{key_id="{KEY_ID}", code="INTERNAL"}}') == [1]
    assert values("polyfleet_scheduler_connected") == [1]
    assert values("polyfleet_ray_nodes") == [1]
    assert values("polyfleet_tls_certificate_expiry_timestamp_seconds - time() > 0")


def test_figures_of_capacity_are_plausible(fleet: MonitoredFleet) -> None:
    board = json.loads((ROOT / "charts" / "polyfleet" / "dashboards" / "capacity.json").read_text())
    panels = {panel["title"]: panel["targets"] for panel in board["panels"] if panel["type"] != "row"}
    for title in ("KV head-room", "Engines busy", "KV cache in an hour"):
        found = [value for target in panels[title] for value in numbers(asked(fleet, target))]
        assert found
        assert all(0 <= value <= 1.01 for value in found), title
    generated, peak = (asked(fleet, target, accelerator="cpu") for target in panels["Generated against measured peak"])
    assert 0 < max(numbers(generated)) < 1.5 * max(numbers(peak))
    assert len(asked(fleet, panels["Workers ready by accelerator"][0])) == len(MACHINES) + 1


def test_workers_are_found_through_the_scheduler(fleet: MonitoredFleet) -> None:
    active = fleet.prometheus.get("targets", state="active")["activeTargets"]
    labels = [target["labels"] for target in active if target["scrapePool"] == "polyfleet-workers"]
    assert {f"w-{accelerator}" for accelerator in MACHINES} <= {each["worker_id"] for each in labels}
    assert all(each["node"] for each in labels)
    assert [target["lastError"] for target in active if target["health"] != "up"] == []
