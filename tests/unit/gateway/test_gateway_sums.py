"""Metrics of several gateway processes as one."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from polyfleet.gateway.metrics import Metrics
from polyfleet.gateway.processes import sums
from polyfleet.gateway.processes.sums import Families, Shown, parsed, summed, with_ended


def text_of(metrics: Metrics) -> str:
    return (generate_latest(metrics.registry) + generate_latest(metrics.process.others)).decode()


def process(requests: int, *, connected: bool = True, workers: tuple[str, ...] = ("w-1",)) -> Families:
    """Of a gateway that has ended so many requests and knows these workers."""
    metrics = Metrics()
    metrics.watch_scheduler(lambda: connected)
    metrics.requests.labels("m", "Generate", "OK").inc(requests)
    metrics.of("m").inflight.set(requests)
    for _ in range(requests):
        metrics.of("m").first_token.observe(0.02)
    for worker in workers:
        metrics.of_worker(worker).failures.inc()
    return parsed(text_of(metrics))


def value(families: Families, sample: str, **labels: str) -> float | None:
    registry = CollectorRegistry()
    registry.register(Shown(families))
    shown = parsed(generate_latest(registry).decode())  # as Prometheus reads it
    found = [
        number
        for family in shown.values()
        for (name, given), number in family.values.items()
        if name == sample and labels.items() <= dict(given).items()
    ]
    return found[0] if found else None


@pytest.mark.parametrize(
    ("sample", "labels", "expected"),
    [
        ("polyfleet_requests_total", {"code": "OK"}, 5),
        ("polyfleet_requests_inflight", {"model": "m"}, 5),
        ("polyfleet_time_to_first_token_seconds_count", {"model": "m"}, 5),
        ("polyfleet_time_to_first_token_seconds_bucket", {"model": "m", "le": "0.01"}, 0),
        ("polyfleet_time_to_first_token_seconds_bucket", {"model": "m", "le": "0.025"}, 5),
        ("polyfleet_worker_failures_total", {"worker_id": "w-1"}, 2),
        ("polyfleet_worker_failures_total", {"worker_id": "w-2"}, 1),
        ("polyfleet_scheduler_connected", {}, 0),
        ("polyfleet_build_info", {}, 1),
    ],
)
def test_counts_add_up_and_gauges_mean_what_they_meant(sample: str, labels: dict[str, str], expected: float) -> None:
    both = summed([process(2), process(3, connected=False, workers=("w-1", "w-2"))], {})
    assert value(both, sample, **labels) == expected


def test_what_ended_processes_had_counted_stays_and_their_gauges_go() -> None:
    ended = with_ended(with_ended({}, process(2)), process(3))
    both = summed([process(1)], ended)
    assert value(both, "polyfleet_requests_total", code="OK") == 6
    assert value(both, "polyfleet_requests_inflight", model="m") == 1
    assert value(both, "polyfleet_time_to_first_token_seconds_count", model="m") == 6
    assert value(summed([], ended), "polyfleet_requests_total", code="OK") == 5


def test_series_of_workers_that_nobody_knows_any_more_are_not_shown() -> None:
    ended = with_ended({}, process(1, workers=("gone", "w-1")))
    both = summed([process(1)], ended)
    assert value(both, "polyfleet_worker_failures_total", worker_id="w-1") == 2
    assert value(both, "polyfleet_worker_failures_total", worker_id="gone") is None


def test_every_gauge_of_a_gateway_has_a_rule_that_was_thought_of() -> None:
    """One that adds up is listed here, the others in the module: a new one has to go to one of the two."""
    adding = {
        *("polyfleet_requests_inflight", "polyfleet_requests_queued", "polyfleet_connections"),
        *("polyfleet_ledger_requests", "polyfleet_sessions"),
        *("process_virtual_memory_bytes", "process_resident_memory_bytes", "process_open_fds"),
    }
    gauges = {name for name, each in process(1).items() if each.kind == "gauge" and not name.endswith("_created")}
    assert gauges - sums.LEAST - sums.MOST == adding
