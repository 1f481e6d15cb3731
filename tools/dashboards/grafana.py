"""Dashboards as frozen data, and the JSON that Grafana 10 and newer imports.

In a query `<scope>`, `<model>`, `<accelerator>` and `<pool>` stand for matchers of the dashboard's variables, by the
labels that the metric has.
"""

from dataclasses import dataclass
from typing import Any, Literal

Json = dict[str, Any]
Kind = Literal["timeseries", "stat", "table"]

SCOPE = 'cluster=~"$cluster", namespace=~"$namespace"'
MATCHERS = {
    "<scope>": SCOPE,
    "<model>": f'{SCOPE}, model=~"$model"',
    "<accelerator>": f'{SCOPE}, accelerator=~"$accelerator"',
    "<pool>": f'{SCOPE}, model=~"$model", accelerator=~"$accelerator"',
}
# Each offers what `polyfleet_workers` has. "All" is `.*`, which matches a label that is not there: without Kubernetes
# there is no cluster and no namespace.
VARIABLES = ("cluster", "namespace", "model", "accelerator")
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS, HEIGHT, STAT_HEIGHT = 24, 8, 4
TAG = "polyfleet"


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL and what its series are called: a template such as `{{model}}`, or a fixed name."""

    promql: str
    legend: str

    @property
    def expr(self) -> str:
        """The PromQL that Grafana gets."""
        expr = " ".join(self.promql.split())
        for name, matchers in MATCHERS.items():
            expr = expr.replace(name, matchers)
        return expr


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    `unit` is Grafana's id of it, `width` in 24ths of the page. It is red from `bad` on (with `bad_below`: below it);
    `full` is where the axis ends. `hidden` labels are no columns of a table.
    """

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: Kind = "timeseries"
    width: int = 8
    stack: bool = False
    full: float | None = None
    bad: float | None = None
    bad_below: bool = False
    hidden: tuple[str, ...] = ()

    @property
    def height(self) -> int:
        """In rows of the grid."""
        return STAT_HEIGHT if self.kind == "stat" else HEIGHT

    def json(self, number: int, x: int, y: int) -> Json:
        """The panel at a place of the grid."""
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": DATASOURCE,
            "gridPos": {"h": self.height, "w": self.width, "x": x, "y": y},
            "fieldConfig": {"defaults": self._defaults(), "overrides": []},
            "options": OPTIONS[self.kind],
            "targets": [self._target(query, chr(ord("A") + index)) for index, query in enumerate(self.queries)],
            **({"transformations": self._columns()} if self.kind == "table" else {}),
        }

    def _target(self, query: Query, letter: str) -> Json:
        instant = self.kind != "timeseries"
        return {
            "refId": letter,
            "datasource": DATASOURCE,
            "expr": query.expr,
            "legendFormat": query.legend,
            "instant": instant,
            "range": not instant,
            "format": "table" if self.kind == "table" else "time_series",
        }

    def _defaults(self) -> Json:
        defaults: Json = {"unit": self.unit}
        if self.full is not None:
            defaults["max"] = self.full
        if self.bad is not None:
            low, high = ("red", "green") if self.bad_below else ("green", "red")
            steps = [{"color": low, "value": None}, {"color": high, "value": self.bad}]
            defaults["thresholds"] = {"mode": "absolute", "steps": steps}
        if self.kind == "timeseries":
            custom: Json = {"fillOpacity": 25 if self.stack else 5, "showPoints": "never", "axisSoftMin": 0}
            custom["stacking"] = {"mode": "normal" if self.stack else "none", "group": "A"}
            if self.bad is not None:
                custom["thresholdsStyle"] = {"mode": "dashed"}
            defaults["custom"] = custom
        return defaults

    def _columns(self) -> list[Json]:
        hidden = ("Time", "Value", "__name__", *self.hidden)
        return [{"id": "organize", "options": {"excludeByName": dict.fromkeys(hidden, True)}}]


OPTIONS: dict[Kind, Json] = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "none",
        "textMode": "auto",
    },
    "table": {"showHeader": True},
}


@dataclass(frozen=True, slots=True)
class Row:
    """A titled group of panels."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One dashboard; `name` is its file's and, behind the tag, its uid."""

    name: str
    title: str
    description: str
    rows: tuple[Row, ...]
    hours: int = 6

    @property
    def panels(self) -> tuple[Panel, ...]:
        """All of them, in order."""
        return tuple(panel for row in self.rows for panel in row.panels)

    def json(self) -> Json:
        """What Grafana imports."""
        return {
            "uid": f"{TAG}-{self.name}",
            "title": f"Polyfleet / {self.title}",
            "description": self.description,
            "tags": [TAG],
            "schemaVersion": 39,
            "version": 1,
            "editable": True,
            "graphTooltip": 1,
            "refresh": "30s",
            "time": {"from": f"now-{self.hours}h", "to": "now"},
            "timezone": "",
            "links": [_siblings()],
            "annotations": {"list": []},
            "templating": {"list": [_datasource(), *map(_variable, VARIABLES)]},
            "panels": self._layout(),
        }

    def _layout(self) -> list[Json]:
        """Rows one below the other; panels from left to right, as many as fit."""
        placed: list[Json] = []
        y = 0
        for row in self.rows:
            place = {"h": 1, "w": COLUMNS, "x": 0, "y": y}
            number = len(placed) + 1
            placed.append({"id": number, "type": "row", "title": row.title, "collapsed": False, "gridPos": place})
            x, y, height = 0, y + 1, 0
            for panel in row.panels:
                if x + panel.width > COLUMNS:
                    x, y, height = 0, y + height, 0
                placed.append(panel.json(len(placed) + 1, x, y))
                x, height = x + panel.width, max(height, panel.height)
            y += height
        return placed


def _siblings() -> Json:
    return {
        "type": "dashboards",
        "title": "Polyfleet",
        "tags": [TAG],
        "asDropdown": True,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
    }


def _datasource() -> Json:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1}


def _variable(name: str) -> Json:
    query = f"label_values(polyfleet_workers, {name})"
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }
