"""Benchmarks as the console asks for them and compares them."""

import pytest

from polyfleet.console.fleet.words import benchmark_word
from polyfleet.console.pages.bench import compared, plan_of
from polyfleet.v1 import operations_pb2 as pb


def test_what_a_form_leaves_out_is_the_schedulers_to_say() -> None:
    plan = plan_of({"model": "m", "concurrency": "8", "requests": " ", "csrf": "x"})
    assert (plan.model, plan.concurrency, plan.requests) == ("m", 8, 0)


@pytest.mark.parametrize(
    ("field", "text"), [("concurrency", "65"), ("requests", "0"), ("max_tokens", "-1"), ("prompt_tokens", "many")]
)
def test_a_wrong_field_is_named(field: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"{field}: must be"):
        plan_of({field: text})


def job(**figures: float | None) -> pb.Benchmark:
    rows = [pb.BenchmarkRow(name=name, unit="ms") for name in figures]
    for row, value in zip(rows, figures.values(), strict=True):
        if value is not None:
            row.value = value
    return pb.Benchmark(rows=rows)


def test_figures_are_compared_where_both_runs_have_them() -> None:
    one, other = job(a=3.0, b=2.0, c=None, d=1.0, e=5.0), job(a=1.5, c=4.0, d=0.0, e=None)
    assert compared(one, other) == [
        ("a", "ms", 3.0, 1.5, 2.0),
        ("b", "ms", 2.0, None, None),
        ("c", "ms", None, 4.0, None),
        ("d", "ms", 1.0, 0.0, None),
        ("e", "ms", 5.0, None, None),
    ]
    assert [against for _, _, _, against, _ in compared(one, None)] == [None] * 5


def test_states_of_newer_versions_are_unknown() -> None:
    known = (pb.BENCHMARK_STATE_RUNNING, pb.BENCHMARK_STATE_CANCELLED)
    assert [benchmark_word(pb.Benchmark(state=value).state) for value in known] == ["running", "cancelled"]
    newer = pb.Benchmark.FromString(b"\x18\x63")  # state 99
    assert benchmark_word(newer.state) == "unknown"
