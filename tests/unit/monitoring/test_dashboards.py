"""The dashboards: their files are what the code makes, and every panel says what it shows, in what unit, from what."""

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from tests.support.monitoring import exported, metrics_in, panel_queries, rules
from tools.dashboards.__main__ import FOLDER, files
from tools.dashboards.boards import DASHBOARDS
from tools.dashboards.grafana import VARIABLES, Dashboard, Panel

ARCHITECTURE = Path(__file__).parents[3] / "docs" / "architecture.md"
UNITS = {"bool_yes_no", "bytes", "celsius", "hertz", "ops", "percentunit", "reqps", "s", "short", "watt"}
PANELS = [(board, panel) for board in DASHBOARDS for panel in board.panels]
every_board = pytest.mark.parametrize("board", DASHBOARDS, ids=lambda board: board.name)
every_panel = pytest.mark.parametrize(
    ("board", "panel"), PANELS, ids=[f"{board.name}: {panel.title}" for board, panel in PANELS]
)
every_query = pytest.mark.parametrize("query", panel_queries().values(), ids=panel_queries().keys())


def placed(board: Dashboard) -> list[dict[str, Any]]:
    """The panels and rows of the JSON."""
    found: list[dict[str, Any]] = board.json()["panels"]
    return found


def test_the_files_are_what_the_code_makes() -> None:
    wanted = files()
    assert set(FOLDER.glob("*")) == wanted.keys(), "run `make dashboards`"
    for path, text in wanted.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run `make dashboards`"


def test_the_five_are_there() -> None:
    assert [board.name for board in DASHBOARDS] == ["overview", "capacity", "devices", "scheduler", "requests"]
    assert len({board.json()["uid"] for board in DASHBOARDS}) == 5


@every_board
def test_variables_work_without_kubernetes(board: Dashboard) -> None:
    variables = {each["name"]: each for each in board.json()["templating"]["list"]}
    assert list(variables) == ["datasource", *VARIABLES]
    for name in VARIABLES:
        assert variables[name]["query"]["query"] == f"label_values(polyfleet_workers, {name})"
        assert variables[name]["allValue"] == ".*", "it matches the empty label too"
        assert variables[name]["current"]["value"] == ["$__all"]
        assert variables[name]["includeAll"]


@every_board
def test_panels_lie_on_the_page_and_not_on_each_other(board: Dashboard) -> None:
    places = [panel["gridPos"] for panel in placed(board)]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)


@every_board
def test_every_panel_asks_the_chosen_data_source(board: Dashboard) -> None:
    panels = [panel for panel in placed(board) if panel["type"] != "row"]
    assert len({panel["id"] for panel in placed(board)}) == len(placed(board))
    assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}
    for panel in panels:
        assert [target["refId"] for target in panel["targets"]] == list("ABCDEF")[: len(panel["targets"])]
        assert all(target["expr"] and target["range"] != target["instant"] for target in panel["targets"])


@every_panel
def test_every_panel_says_what_it_shows(board: Dashboard, panel: Panel) -> None:
    assert panel.title
    assert panel.description.endswith(".")
    assert panel.unit in UNITS or panel.unit.startswith("suffix: ")
    assert panel.queries
    legends = [query.legend for query in panel.queries]
    assert len(set(legends)) == len(legends)
    assert all(legends) or panel.kind == "table"


def test_titles_are_told_apart() -> None:
    for board in DASHBOARDS:
        titles = [panel.title for panel in board.panels]
        assert len(set(titles)) == len(titles)


@every_query
def test_queries_ask_for_what_is_there_and_hide_nothing(query: str) -> None:
    known = exported()
    asked = metrics_in(query)
    assert asked
    assert asked - known.keys() == set()
    assert "vector(" not in query
    assert "<" not in re.sub(r'"[^"]*"', "", query), "an unknown stand-in"


@every_query
def test_queries_are_filtered_by_the_labels_that_the_metric_has(query: str) -> None:
    """By every variable that there is a label for, and by no label that the metric lacks."""
    known = exported()
    for metric, matchers in re.findall(r"(polyfleet_\w+)\{([^}]*)\}", query):
        matched = set(re.findall(r"(\w+)=", matchers.replace("!=", "="))) | set(re.findall(r"(\w+)!=", matchers))
        assert matched >= {"cluster", "namespace"}, metric
        assert matched - {"cluster", "namespace"} <= known[metric], metric
        assert {"model", "accelerator"} & known[metric] <= matched, metric
    for metric in metrics_in(query):
        assert f"{metric}{{" in query


def test_every_metric_is_in_the_documentation_and_every_documented_one_exists() -> None:
    text = ARCHITECTURE.read_text(encoding="utf-8")
    table = text[text.index("## Metrics") :]
    names = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exported()}
    documented = metrics_in(table)
    assert documented - {"polyfleet_device_"} == names


def test_every_metric_is_shown_or_watched() -> None:
    watched = metrics_in(" ".join(panel_queries().values()))
    for rule in rules():
        watched |= metrics_in(rule["expr"])
    assert exported().keys() - watched - {name for name in exported() if name.endswith(("_sum", "_count"))} == set()


def test_the_json_is_plain() -> None:
    for text in files().values():
        assert json.loads(text)["schemaVersion"] == 39
        assert len(text) < 1_000_000, "a ConfigMap holds no more"
