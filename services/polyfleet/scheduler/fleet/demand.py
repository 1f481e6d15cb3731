"""What gateways say of their requests: how many wait and how long, by model; how those of each revision fared. Pure."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from polyfleet.v1 import fleet_pb2 as pb
from polyfleet.wire.limits import FieldError, check_count

MAX_NAMES = 4096  # of models, and of revisions, in a report
SILENT_SECONDS = 10.0  # a gateway that says nothing for so long has no requests any more


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """What all gateways have of one model's requests. `queue_seconds` is the worst of theirs, `active` when any last
    had one or began one; -inf: never heard of.
    """

    queued: int = 0
    running: int = 0
    queue_seconds: float = 0.0
    active: float = float("-inf")


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Sequences that have ended, and those of them that failed by no fault of their callers."""

    sequences: int = 0
    errors: int = 0

    def __sub__(self, other: "Outcomes") -> "Outcomes":
        return Outcomes(self.sequences - other.sequences, self.errors - other.errors)

    def __add__(self, other: "Outcomes") -> "Outcomes":
        return Outcomes(self.sequences + other.sequences, self.errors + other.errors)

    @property
    def error_ratio(self) -> float:
        """Errors as a share; 0 of nothing."""
        return self.errors / self.sequences if self.sequences else 0.0


def check_demand(request: pb.ReportUsageRequest) -> None:
    """Raise FieldError for what no gateway says."""
    check_count("models", len(request.models), MAX_NAMES)
    check_count("revisions", len(request.revisions), MAX_NAMES)
    for index, each in enumerate(request.models):
        if not 0 <= each.queue_seconds < inf:  # nor NaN
            raise FieldError(f"models[{index}].queue_seconds", f"must be 0 or more, not {each.queue_seconds:g}")
    for index, totals in enumerate(request.revisions):
        if totals.errors > totals.sequences:
            raise FieldError(f"revisions[{index}].errors", f"must be at most {totals.sequences}, not {totals.errors}")


@dataclass(slots=True)
class _Gateway:
    heard: float
    totals: dict[tuple[str, int], Outcomes] = field(default_factory=dict)
    models: dict[str, pb.ModelDemand] = field(default_factory=dict)


class Demand:
    """Adds up what gateways report. Their totals count from the first report that is heard of each."""

    def __init__(self) -> None:
        self._gateways: dict[str, _Gateway] = {}
        self._outcomes = defaultdict[tuple[str, int], Outcomes](Outcomes)
        self._active: dict[str, float] = {}

    def report(self, request: pb.ReportUsageRequest, now: float) -> None:
        """One gateway's report, which `check_demand` has seen."""
        before = self._gateways.get(request.gateway_id)
        totals = {(each.deployment, each.revision): Outcomes(each.sequences, each.errors) for each in request.revisions}
        models = {each.model: each for each in request.models}
        for key, outcomes in totals.items():
            grown = outcomes - before.totals.get(key, Outcomes()) if before else Outcomes()
            if grown.sequences >= 0 and grown.errors >= 0:
                self._outcomes[key] += grown
        for model, demand in models.items():
            known = before.models.get(model) if before else None
            if demand.queued or demand.running or (known and demand.requests != known.requests):
                self._active[model] = now
        self._gateways[request.gateway_id] = _Gateway(now, totals, models)
        for gateway_id in [each for each, it in self._gateways.items() if now - it.heard > SILENT_SECONDS]:
            del self._gateways[gateway_id]

    def outcomes(self, deployment: str, revision: int) -> Outcomes:
        """How the revision's sequences have fared since this scheduler began."""
        return self._outcomes.get((deployment, revision), Outcomes())

    def load(self, model: str, now: float) -> ModelLoad:
        """What gateways that are heard of have of this model."""
        told = [
            each.models[model]
            for each in self._gateways.values()
            if model in each.models and now - each.heard <= SILENT_SECONDS
        ]
        return ModelLoad(
            sum(each.queued for each in told),
            sum(each.running for each in told),
            max((each.queue_seconds for each in told), default=0.0),
            self._active.get(model, float("-inf")),
        )

    def keep(self, deployments: Iterable[str], models: Iterable[str]) -> None:
        """Forget what is of no deployment and no model that there is."""
        wished, served = set(deployments), set(models)
        for key in [each for each in self._outcomes if each[0] not in wished]:
            del self._outcomes[key]
        for model in [each for each in self._active if each not in served]:
            del self._active[model]
