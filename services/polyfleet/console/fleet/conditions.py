"""What is wrong in the fleet now: the alerts that fire, or what the console itself can judge. Pure."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from polyfleet.console.fleet.words import health_word, state_word
from polyfleet.v1 import fleet_pb2, operations_pb2

PREFIX = "Polyfleet"  # begins the names of this project's alerts
MAX_CONDITIONS = 50
NAMED = 3  # workers, of those that are down for one reason
RUNBOOK = re.compile(r"docs/runbooks/[A-Za-z]+\.md")
SEVERITIES = ("critical", "warning")  # the worst first


@dataclass(frozen=True)
class Condition:
    """Something that holds, since when (Unix time; 0: not known), and the page that says what to do.

    `word` is what a worker is, beside what `summary` says.
    """

    name: str
    severity: str
    summary: str
    since: float = 0.0
    runbook: str = ""  # as the alert names it: a path in the documentation, or an address
    word: str = ""

    def link(self, base: str) -> str:
        """The page's address, of a documentation that lies at `base` (empty: nowhere); empty: it has none."""
        if self.runbook.startswith(("https://", "http://")):
            return self.runbook
        return f"{base.rstrip('/')}/{self.runbook}" if base and RUNBOOK.fullmatch(self.runbook) else ""


def conditions_in(alerts: Iterable[Mapping[str, Any]]) -> list[Condition]:
    """Those of Prometheus' alerts that fire and are this project's, the worst first. Raises ValueError, KeyError."""
    found = []
    for each in alerts:
        labels, notes = each["labels"], each.get("annotations", {})
        if each["state"] == "firing" and labels["alertname"].startswith(PREFIX):
            since = datetime.fromisoformat(each["activeAt"][:19] + "+00:00").timestamp()
            runbook = notes.get("runbook_url") or notes.get("runbook", "")
            name, severity = labels["alertname"], labels.get("severity", "warning")
            found.append(Condition(name, severity, notes.get("summary", name).strip(), since, runbook))
    return ordered(found)


def judged(snapshot: fleet_pb2.FleetSnapshot, devices: Iterable[operations_pb2.FleetDevice]) -> list[Condition]:
    """What can be told without Prometheus: unhealthy devices, workers that are down, deployments that lack workers."""
    sick = Counter(
        (each.state.accelerator, each.state.name, each.state.reason)
        for each in devices
        if health_word(each.state.health) == "unhealthy"
    )
    found = [
        condition("PolyfleetDeviceUnhealthy", "critical", f"{count} × {accelerator} {name}: {reason}".rstrip(": "))
        for (accelerator, name, reason), count in sick.items()
    ]
    down = defaultdict[tuple[str, str], list[str]](list)
    for worker in snapshot.workers:
        if (word := state_word(worker.status.state)) in ("unhealthy", "lost"):
            down[word, worker.status.reason].append(worker.info.worker_id)
    for (word, reason), names in down.items():
        more = f" … ({len(names)})" if len(names) > NAMED else ""
        found.append(Condition("", "warning", f"{', '.join(names[:NAMED])}{more} {reason}".strip(), word=word))
    ready = Counter(each.info.deployment for each in snapshot.workers if state_word(each.status.state) == "ready")
    for wish in (*snapshot.deployments, *snapshot.pools):
        if (there := ready[wish.name]) < wish.workers:
            summary = f"{wish.name}: {there} / {wish.workers} {wish.problem}".strip()
            name, severity = ("PolyfleetWorkersMissing", "warning") if there else ("PolyfleetModelDown", "critical")
            found.append(condition(name, severity, summary))
    return ordered(found)


def condition(name: str, severity: str, summary: str) -> Condition:
    """That of an alert which has a page in the documentation."""
    return Condition(name, severity, summary, runbook=f"docs/runbooks/{name}.md")


def ordered(conditions: Iterable[Condition]) -> list[Condition]:
    """The worst and oldest first, not more than a page holds."""

    def rank(each: Condition) -> tuple[int, float, str, str]:
        severity = SEVERITIES.index(each.severity) if each.severity in SEVERITIES else len(SEVERITIES)
        return severity, each.since, each.name, each.summary

    return sorted(conditions, key=rank)[:MAX_CONDITIONS]
