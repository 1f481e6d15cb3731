"""What gateways say of their requests, added up."""

from math import inf, nan

import pytest

from polyfleet.scheduler.fleet.demand import SILENT_SECONDS, Demand, ModelLoad, Outcomes, check_demand
from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.wire.limits import FieldError


def report(gateway: str, sequences: int = 0, errors: int = 0, **demand: float) -> pb.ReportUsageRequest:
    return pb.ReportUsageRequest(
        gateway_id=gateway,
        revisions=[pb.RevisionTotals(deployment="d", revision=1, sequences=sequences, errors=errors)],
        models=[pb.ModelDemand(model="m", **demand)] if demand else [],  # type: ignore[arg-type]
    )


def test_totals_grow_by_what_each_gateway_counts_from_its_first_report_on() -> None:
    demand = Demand()
    demand.report(report("a", 1000, 100), 0)
    assert demand.outcomes("d", 1) == Outcomes()
    demand.report(report("a", 1010, 103), 1)
    demand.report(report("a", 1010, 103), 1)  # sent again
    demand.report(report("b", 0, 0), 1)
    demand.report(report("b", 5, 1), 2)
    assert demand.outcomes("d", 1) == Outcomes(15, 4)
    demand.report(report("a", 3, 0), 3)  # it has forgotten what a revision without workers had
    demand.report(report("a", 4, 0), 4)
    assert demand.outcomes("d", 1) == Outcomes(16, 4)
    demand.keep([], [])
    assert demand.outcomes("d", 1) == Outcomes()


def test_loads_add_up_while_their_gateways_are_heard() -> None:
    demand = Demand()
    assert demand.load("m", 0) == ModelLoad()
    demand.report(report("a", queued=2, running=1, queue_seconds=3.0), 0)
    demand.report(report("b", queued=1, running=4, queue_seconds=0.5), 5)
    assert demand.load("m", 5) == ModelLoad(3, 5, 3.0, 5)
    assert demand.load("m", SILENT_SECONDS + 1) == ModelLoad(1, 4, 0.5, 5)


def test_a_short_request_between_two_reports_counts_as_activity() -> None:
    demand = Demand()
    demand.report(report("a", requests=7), 0)
    assert demand.load("m", 0).active == -inf
    demand.report(report("a", requests=8), 2)
    demand.report(report("a", requests=8), 4)
    assert demand.load("m", 4).active == 2


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (report("a", queued=1, queue_seconds=nan), r"models\[0\].queue_seconds"),
        (report("a", queued=1, queue_seconds=inf), r"models\[0\].queue_seconds"),
        (report("a", queued=1, queue_seconds=-1), r"models\[0\].queue_seconds"),
        (report("a", 1, 2), r"revisions\[0\].errors"),
        pytest.param(
            pb.ReportUsageRequest(models=[pb.ModelDemand()] * 4097), "models: must be at most 4096, not 4097", id="many"
        ),
    ],
)
def test_nonsense_is_refused(message: pb.ReportUsageRequest, problem: str) -> None:
    with pytest.raises(FieldError, match=problem):
        check_demand(message)
