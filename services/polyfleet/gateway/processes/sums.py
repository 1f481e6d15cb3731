"""The metrics of several processes as one: counters and histograms added up, gauges by what they mean. Pure.

What a process had counted when it ended stays in the sums, so that they never fall.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

GROWING = ("counter", "histogram")
LEAST = {
    "polyfleet_scheduler_connected",
    "polyfleet_tls_certificate_expiry_timestamp_seconds",
    "process_start_time_seconds",
    "process_max_fds",
}
MOST = {
    "polyfleet_build_info",
    "polyfleet_circuit_open",
    "polyfleet_slo_objective_seconds",
    "python_info",
    "process_virtual_memory_max_bytes",
}
WORKER = "worker_id"  # series of workers that no process knows any more are left out
Labels = tuple[tuple[str, str], ...]
Key = tuple[str, Labels]


@dataclass(slots=True)
class Family:
    """One metric of one process, or of several."""

    kind: str
    text: str
    values: dict[Key, float] = field(default_factory=dict)  # in their order, which buckets of a histogram need

    def add(self, key: Key, value: float, join: Callable[[float, float], float]) -> None:
        """Join one more value of that series."""
        self.values[key] = join(self.values[key], value) if key in self.values else value


Families = dict[str, Family]


def parsed(text: str) -> Families:
    """What a process shows at /metrics. Raises ValueError for anything else."""
    return {
        family.name: Family(
            family.type, family.documentation, {(s.name, tuple(s.labels.items())): s.value for s in family.samples}
        )
        for family in text_string_to_metric_families(text)
    }


def summed(processes: Iterable[Families], ended: Families) -> Families:
    """Of all that run, on top of what those that `ended` have counted."""
    found, known = Families(), set[str]()
    for families in processes:
        for name, family in families.items():
            total = found.setdefault(name, Family(family.kind, family.text))
            for key, value in family.values.items():
                total.add(key, value, join_of(name))
        known |= workers_of(families)
    for name, family in ended.items():
        total = found.setdefault(name, Family(family.kind, family.text))
        for key, value in family.values.items():
            if dict(key[1]).get(WORKER, "") in known | {""}:
                total.add(key, value, join_of(name))
    return found


def with_ended(ended: Families, families: Families) -> Families:
    """What those that ended have counted, with one more of them."""
    return summed([{name: each for name, each in families.items() if each.kind in GROWING}], ended)


def workers_of(families: Families) -> set[str]:
    """Of which workers a process has series."""
    keys = (key for family in families.values() for key in family.values)
    return {value for _, labels in keys for label, value in labels if label == WORKER}


def join_of(name: str) -> Callable[[float, float], float]:
    """How the values of two processes make one."""
    if name in LEAST or name.endswith("_created"):
        return min
    return max if name in MOST else float.__add__


class Shown(Collector):
    """These families, as prometheus_client writes them."""

    def __init__(self, families: Families) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """One after another."""
        for name, family in self._families.items():
            metric = Metric(name, family.text, family.kind)
            for (sample, labels), value in family.values.items():
                metric.add_sample(sample, dict(labels), value)
            yield metric
