"""Whether a prompt is computed apart: by another worker than the one that decodes behind it, and by which. Pure.

Workers of role `prefill` compute prompts for others; what is not computed apart may go to them as to any. Apart pays
where the sum of what is expected is less: the other worker's wait and prompt, and then a request to the decoding worker
whose prompt is there but for what its keys and values take to arrive, as the policy scores it: with objectives, and
with what others there are delayed by. And it has to spare the decoding worker most of the work.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, unique
from math import ceil

from polyfleet.placement.candidate import Candidate, Judgement, best_of
from polyfleet.placement.fleet import PlacementRequest, Role, Worker
from polyfleet.placement.policy import Policy

LEAST_TOKENS = 256  # of a prompt: fewer are computed in less than the words about them take
BLOCKING = 0.1  # share of that way's time for which the decoding worker launches no step, where that is not known
MOST_WORK = 0.25  # of computing a prompt, that taking it in may be: with more, two workers that do all carry more
SOONEST = 1e-3  # seconds, that are left for the first token where nothing is


@unique
class Decision(str, Enum):
    """Apart, or why together."""

    APART = "apart"
    TOGETHER = "together"  # it is expected to be better
    SHORT = "short"  # little of the prompt is to be computed
    BOUND = "bound"  # keys and values of such a request don't travel
    NO_PREFILL = "no_prefill_worker"
    NO_DECODE = "no_decode_worker"
    NO_CHANNEL = "no_channel"  # one of the two workers neither gives prompts nor takes any


@dataclass(frozen=True, slots=True)
class Apart:
    """What was decided of one request. `worker` computes its prompt; None: the one that decodes."""

    decision: Decision
    worker: Worker | None = None
    seconds: float = 0.0  # expected until the prompt is there
    gain: float = 0.0  # seconds by which apart is better than together; less than 0: worse

    @property
    def told(self) -> str:
        """For people: at which worker, or why not."""
        return f"at {self.worker.worker_id}" if self.worker else self.decision.value


def decoding(candidates: list[Candidate]) -> list[Candidate]:
    """Those whose prompts may be computed by others."""
    return [each for each in candidates if each.worker.role is not Role.PREFILL]


def decide(
    request: PlacementRequest, decoders: Sequence[Candidate], prefillers: Sequence[Candidate], policy: Policy
) -> tuple[Candidate | None, Apart]:
    """The decoding worker where the prompt is computed apart, else None, and why.

    Together means at the best of the decoding workers: beside an idle prefill worker, as long as there is one, nothing
    would ever be computed apart.
    """
    if not decoders:
        return None, Apart(Decision.NO_DECODE)
    if request.bound:
        return None, Apart(Decision.BOUND)
    if request.prompt_tokens < LEAST_TOKENS:
        return None, Apart(Decision.SHORT)
    if not prefillers:
        return None, Apart(Decision.NO_PREFILL)
    together = _best(request, decoders, policy)
    if together is None:
        return None, Apart(Decision.TOGETHER)
    cached = request.cached_tokens.get(together[0].worker.worker_id, 0)
    if request.prompt_tokens - cached < LEAST_TOKENS:
        return None, Apart(Decision.SHORT)
    found = _divided(request, decoders, prefillers, policy)
    if found is None:
        return None, Apart(Decision.TOGETHER)
    score, seconds, prefiller, decoder = found
    gain = together[1].score - score
    if gain > 0:
        return decoder, Apart(Decision.APART, prefiller.worker, seconds, gain)
    return None, Apart(Decision.TOGETHER, None, seconds, gain)


def _divided(
    request: PlacementRequest, decoders: Sequence[Candidate], prefillers: Sequence[Candidate], policy: Policy
) -> tuple[float, float, Candidate, Candidate] | None:
    """Apart at its best: its score, the seconds until the prompt has come, and who computes and who decodes."""
    prompt = request.prompt_tokens
    work = {each.worker.worker_id: _held_up(request, each, policy) for each in decoders}
    decoders = [each for each in decoders if _spared(request, each, work[each.worker.worker_id])]
    alone = replace(request, max_tokens=1, output_tokens=1, first_token_seconds=0.0, token_seconds=0.0)
    if (best := _best(alone, prefillers, policy)) is None:
        return None
    prefiller, there = best
    there_cached = {name: prompt - tokens for name, tokens in work.items()}
    goal = request.first_token_seconds
    left = max(SOONEST, goal - there.first) if goal else 0.0
    behind = replace(request, cached_tokens=there_cached, first_token_seconds=left)
    if (best := _best(behind, decoders, policy)) is None:
        return None
    decoder, here = best
    computing = max(0, prompt - request.cached_tokens.get(prefiller.worker.worker_id, 0)) * prefiller.rate
    seconds = there.first + max(0.0, _travel(request, decoder, policy) - computing)  # they go on side by side
    costs = (prefiller.cost - decoder.cost) * prompt  # of the prompt, that `here` counts at the decoding worker
    return seconds + here.score + costs, seconds, prefiller, decoder


def _travel(request: PlacementRequest, decoder: Candidate, policy: Policy) -> float:
    """Seconds in which what a worker has not of a prompt's keys and values comes to it."""
    missing = request.prompt_tokens - request.cached_tokens.get(decoder.worker.worker_id, 0)
    return missing / (decoder.worker.fetch_tokens_per_second or policy.unknown_fetch_tokens_per_second)


def _held_up(request: PlacementRequest, decoder: Candidate, policy: Policy) -> int:
    """For how long its steps are held up by that, as tokens that it would compute meanwhile, and the last one."""
    travel, worker = _travel(request, decoder, policy), decoder.worker
    missing = request.prompt_tokens - request.cached_tokens.get(worker.worker_id, 0)
    seconds = missing / worker.import_tokens_per_second if worker.import_tokens_per_second else BLOCKING * travel
    return 1 + ceil(min(float(missing), seconds / decoder.rate))


def _spared(request: PlacementRequest, decoder: Candidate, held_up: int) -> bool:
    """Whether taking a prompt in is little beside computing what is missing of it."""
    return held_up <= MOST_WORK * (request.prompt_tokens - request.cached_tokens.get(decoder.worker.worker_id, 0))


def _best(
    request: PlacementRequest, candidates: Sequence[Candidate], policy: Policy
) -> tuple[Candidate, Judgement] | None:
    """The best of some candidates, and what is expected of it."""
    best, notes = best_of(request, candidates, policy), list[Judgement]()
    if best is None:
        return None
    best_of(request, [best], policy, notes)
    return best, notes[0]
