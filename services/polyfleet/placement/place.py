"""`place()`: which worker serves a request. Pure: frozen facts in, a frozen Placement out.

Filter, score, pick. Of the ready workers of the request's model, those that can serve it get a score in seconds
(`candidate.py`), or one by a simpler rule (`rules.py`); the least one wins. Reasons cost nothing until somebody asks:
`Placement.verdicts` works them out again.
"""

from dataclasses import dataclass

from polyfleet.placement.apart import Apart, decide, decoding
from polyfleet.placement.candidate import Candidate, Judgement, best_of, expected_output
from polyfleet.placement.filters import obstacle, spared
from polyfleet.placement.fleet import FleetSnapshot, PlacementRequest, Role, Verdict, Worker
from polyfleet.placement.policy import Policy
from polyfleet.placement.pool import FleetIndex
from polyfleet.placement.rules import RULES

LATE_MARGIN = 1.5  # expected first tokens leave out what meanwhile decodes beside the prompts that wait


@dataclass(frozen=True, slots=True)
class Placement:
    """The worker that serves a request (None: nobody can now), and what was decided by.

    `apart`: whether another one computes its prompt; None where no worker of the model is for that, or for decoding.
    """

    worker: Worker | None
    request: PlacementRequest
    policy: Policy
    fleet: tuple[Worker, ...] | FleetIndex
    apart: Apart | None = None

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """One for each worker of the fleet, in its order. Of a FleetIndex: as it is by now."""
        return explain(self.request, self.fleet, self.policy)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Placement) and (self.worker, self.request) == (other.worker, other.request)

    __hash__ = None  # type: ignore[assignment]


def place(request: PlacementRequest, fleet: FleetSnapshot | FleetIndex, policy: Policy | None = None) -> Placement:
    """The worker with the least score; `worker` is None when none can serve the request.

    The same arguments always give the same Placement, and more load on a worker never makes it win where it did not
    before. An index brings its own policy; one that is kept makes a placement cheap.
    """
    index = fleet if isinstance(fleet, FleetIndex) else FleetIndex(policy or Policy(), fleet.workers)
    kept, prefillers = _by_role(request, index)
    chosen, apart = None, None
    if prefillers is not None and kept and index.policy.policy == "completion":
        chosen, apart = decide(request, decoding(kept), prefillers, index.policy)
    worker = chosen.worker if chosen else pick(request, kept, index.policy)
    return Placement(worker, request, index.policy, fleet if isinstance(fleet, FleetIndex) else fleet.workers, apart)


def able(request: PlacementRequest, index: FleetIndex) -> list[Candidate]:
    """The candidates that can serve the request; those with an open circuit only where there are no others."""
    return _by_role(request, index)[0]


def _by_role(request: PlacementRequest, index: FleetIndex) -> tuple[list[Candidate], list[Candidate] | None]:
    """Those that can serve the request, and those that can compute its prompt for them; None where none has a role."""
    if (pool := index.pool(request.model)) is None:
        return [], None
    tokens = request.prompt_tokens + request.max_tokens
    kept = [each for each in pool.candidates(request.fingerprint) if tokens <= each.room]
    rule = index.policy.rule_of(request.tenant)
    if rule or request.excluded or request.features:
        kept = [each for each in kept if not obstacle(request, each.worker, rule)]
    prefillers = None
    if pool.has_roles:
        prefillers = [each for each in kept if each.worker.role is Role.PREFILL and not each.worker.circuit_open]
    if request.revision:  # prompts are those of any, as long as the weights are the same
        mine = [each for each in kept if each.worker.revision == request.revision]
        kept = mine if decoding(mine) else (decoding(kept) or kept)
    kept = (pool.has_spared and [each for each in kept if not each.worker.circuit_open]) or kept
    return kept, prefillers


def pick(request: PlacementRequest, kept: list[Candidate], policy: Policy) -> Worker | None:
    """The best of some candidates by the policy; None of none. One at least is taken, be its score no number."""
    rule = RULES.get(policy.policy)
    best = rule(request, kept) if rule and kept else best_of(request, kept, policy)
    return (best or min(kept, key=lambda each: each.worker.worker_id)).worker if kept else None


def late_by(placement: Placement, seconds: float) -> float:
    """By how many seconds the first token is expected after so many, wherever it may come from; 0: in time.

    Others must be the reason, whose prompts wait or who hold all slots: how long an idle worker takes it may show.
    Expectations count LATE_MARGIN times.
    """
    worker, policy = placement.worker, placement.policy
    if worker is None or not (worker.waiting_prefill_tokens or worker.running_sequences >= worker.max_sequences):
        return 0.0
    request, fleet = placement.request, placement.fleet
    index = fleet if isinstance(fleet, FleetIndex) else FleetIndex(policy, fleet)
    pool = index.pool(worker.model)
    there = pool and pool.candidate(worker.worker_id)
    if there and _late_of(request, [there], policy, seconds) <= 0:
        return 0.0  # nearly always: the others need no look
    late = _late_of(request, able(request, index), policy, seconds)
    alone = able(request, FleetIndex(policy, [worker])) if late > 0 else []
    return late if late > 0 and _late_of(request, alone, policy, seconds) > 0 else 0.0


def _late_of(request: PlacementRequest, kept: list[Candidate], policy: Policy, seconds: float) -> float:
    """By how many seconds the first token is expected after so many from the one that gives it first."""
    notes = list[Judgement]()
    best_of(request, kept, policy, notes)
    return LATE_MARGIN * min((each.first for each in notes), default=0.0) - seconds


def explain(request: PlacementRequest, fleet: tuple[Worker, ...] | FleetIndex, policy: Policy) -> tuple[Verdict, ...]:
    """What place() thinks of each worker, and why."""
    index = fleet if isinstance(fleet, FleetIndex) else FleetIndex(policy, fleet)
    kept, notes = able(request, index), list[Judgement]()
    best_of(request, kept, policy, notes)
    judged = {each.worker.worker_id: note for each, note in zip(kept, notes, strict=True)}
    rule, output = policy.rule_of(request.tenant), expected_output(request, policy)
    verdicts = []
    for worker in index.workers:
        if (note := judged.get(worker.worker_id)) is None:
            verdicts.append(Verdict(worker.worker_id, obstacle(request, worker, rule) or spared(request, worker)))
        else:
            cached = request.cached_tokens.get(worker.worker_id, 0)
            score, first, token = note
            verdicts.append(Verdict(worker.worker_id, "", first, token, first + output * token, cached, score))
    return tuple(verdicts)
