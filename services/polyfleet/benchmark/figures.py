"""Figures of a run as report rows: times in milliseconds, throughput, errors, CPU time."""

from collections.abc import Callable, Mapping, Sequence

from polyfleet.benchmark.loops import Result
from polyfleet.benchmark.rows import Row, compare
from polyfleet.benchmark.work import Outcome, percentile

TIMES: Mapping[str, Callable[[Outcome], float | None]] = {
    "ttft": lambda outcome: outcome.ttft,
    "tpot": lambda outcome: outcome.tpot,
    "e2e": lambda outcome: outcome.latency,
}


def load_rows(result: Result, peer: Result | None) -> list[Row]:
    """One row per figure; a peer's are set beside them."""
    rows = []
    for name in TIMES:
        for label, share in (("p50", 0.5), ("p99", 0.99)):
            ours, theirs = _time(result, name, share), _time(peer, name, share)
            rows.append(_row(f"serving_{name}_{label}", ours, "ms", peer, theirs, lower_is_better=True))
    for name, figure, unit in (("throughput", _throughput, "tok/s"), ("request_rate", _request_rate, "1/s")):
        rows.append(_row(f"serving_{name}", figure(result), unit, peer, figure(peer) if peer else None))
    return [*rows, _errors_row(result, peer)]


def added_rows(gateway: Result, worker: Result) -> list[Row]:
    """What the gateway adds to the worker's time to first token: the difference of the medians, and the median of the
    differences of pairs, which a machine that is busy now and then disturbs less."""
    through, direct = _time(gateway, "ttft", 0.5), _time(worker, "ttft", 0.5)
    added = None if through is None or direct is None else through - direct
    return [
        _row("serving_ttft_through_gateway_p50", through, "ms", worker, direct, lower_is_better=True),
        _row("serving_gateway_added_ttft_p50", added, "ms"),
        _row("serving_gateway_added_ttft_paired_p50", _paired_difference(gateway, worker), "ms"),
        _errors_row(gateway, worker),
    ]


def num_tokens(results: Sequence[Result]) -> int:
    """Generated tokens of all targets."""
    return sum(outcome.tokens for result in results for outcome in result.good)


def _row(
    name: str,
    value: float | None,
    unit: str,
    peer: Result | None = None,
    theirs: float | None = None,
    *,
    lower_is_better: bool = False,
) -> Row:
    label = f"{peer.target.name} {peer.target.address}" if peer else ""
    return compare(name, value, unit, label, theirs, lower_is_better=lower_is_better)


def _paired_difference(gateway: Result, worker: Result) -> float | None:
    pairs = zip(gateway.outcomes, worker.outcomes, strict=True)
    differences = [through.ttft - direct.ttft for through, direct in pairs if not (through.error or direct.error)]
    return percentile(differences, 0.5) * 1e3 if differences else None


def _errors_row(result: Result, peer: Result | None) -> Row:
    theirs = len(peer.errors) if peer else None
    return _row("serving_errors", len(result.errors), "requests", peer, theirs, lower_is_better=True)


def _time(result: Result | None, name: str, share: float) -> float | None:
    """A percentile in milliseconds; None without a result."""
    values = [value for outcome in result.good if (value := TIMES[name](outcome)) is not None] if result else []
    return percentile(values, share) * 1e3 if values else None


def _throughput(result: Result) -> float:
    return num_tokens([result]) / result.seconds if result.seconds else 0.0


def _request_rate(result: Result) -> float:
    return len(result.good) / result.seconds if result.seconds else 0.0
