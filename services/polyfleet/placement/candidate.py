"""Candidate: a ready worker as the few numbers that its score is made of, prepared once per report."""

from collections.abc import Iterable
from hashlib import blake2b
from math import inf
from typing import NamedTuple

from polyfleet.placement.filters import room
from polyfleet.placement.fleet import PlacementRequest, Worker
from polyfleet.placement.policy import Policy

TAKEN_WEIGHT = 8.0  # of a worker's slots, in blurs: less matters than chance, more than a quarter taken does not
SALT = 1e6


class Candidate(NamedTuple):
    """Seconds, tokens and shares of one worker; what they mean together says `best_of`.

    A full worker decodes `max_sequences` side by side, each with `remaining_tokens` to go: in a `turn` all of its slots
    and blocks come free. What is missing is a share of its capacity and not of its present load, so that a growing
    load can't shorten the wait for it.
    """

    block_size: int  # tokens
    room: int  # tokens of one sequence
    wait: float  # seconds for the prompts before it
    rate: float  # seconds for each uncached prompt token
    slots: float  # share of a full worker's sequences that must end before there is a slot
    free: float  # blocks that those before it leave
    blocks: int  # of the whole pool
    turn: float  # seconds in which a full worker's sequences end
    token: float  # seconds from token to token, with one more sequence
    crowd: float  # sequences that a prompt's computing delays, as they are weighed
    crowded: float  # seconds by which one more sequence delays them all, a token of its answer
    held: float  # and for each token that the sequence holds
    extra: float  # seconds that the policy adds: KV pressure
    cost: float  # seconds that each token's cost and energy count as
    taken: float  # share of its slots, in blurs; one less where its rates are not known, so that equals give way
    salt: float  # made of its id: what lies behind the point of its product with a request's is as good as random
    worker: Worker


class Pace(NamedTuple):
    """How fast a worker is taken to be: prompt and decode tokens a second."""

    prefill: float
    decode: float


def pace_of(worker: Worker, fastest: Pace, slowest: Pace, policy: Policy) -> Pace:
    """A worker's own rates, or those of the fastest known one of its accelerator, or a promise; then the slowest
    known one's, once it has got what may be risked on a promise."""
    prefill = worker.prefill_tokens_per_second or fastest.prefill
    decode = worker.decode_tokens_per_second or fastest.decode
    if not prefill or not decode:
        risked = worker.running_sequences + worker.waiting_sequences >= policy.unknown_sequences
        prefill = prefill or (risked and slowest.prefill) or policy.unknown_prefill_tokens_per_second
        decode = decode or (risked and slowest.decode) or policy.unknown_decode_tokens_per_second
    return Pace(prefill, decode)


def candidate_of(worker: Worker, pace: Pace, policy: Policy) -> Candidate:
    """The numbers of one worker at this pace."""
    there = worker.running_sequences + worker.waiting_sequences
    most = max(1, worker.max_sequences)
    held = (worker.num_blocks - worker.free_blocks) * worker.block_size
    sequences = min(there + 1, most)
    token = worker.step_seconds + sequences * worker.step_seconds_per_sequence + held * worker.step_seconds_per_token
    known_step = token > 0.0
    blocks = worker.num_blocks
    return Candidate(
        worker.block_size,
        room(worker),
        worker.waiting_prefill_tokens / pace.prefill,
        1 / pace.prefill,
        max(0, there + 1 - worker.max_sequences) / most,
        worker.free_blocks - worker.waiting_prefill_tokens / worker.block_size if blocks else inf,
        blocks,
        policy.remaining_tokens / pace.decode,
        token if known_step else 1 / pace.decode,
        policy.crowd_weight * there,
        policy.crowd_weight * there * worker.step_seconds_per_sequence,
        worker.step_seconds_per_token if known_step else 0.0,
        policy.kv_weight * (1 - worker.free_blocks / blocks) if blocks else 0.0,
        policy.token_seconds_of(worker.device_name, worker.accelerator),
        TAKEN_WEIGHT * there / most - (not worker.prefill_tokens_per_second),
        SALT * (1 + share_of(worker.worker_id)),
        worker,
    )


class Judgement(NamedTuple):
    """What is expected of a worker, in seconds; the least `score` wins.

    The score is the expected completion time with lateness and costs, blurred by chance and occupancy: equals share,
    and many gateways that see the same old report do not all choose the same worker. Nothing in it looks at other
    workers, and nothing falls when this one's load grows.
    """

    score: float
    first: float  # until the first token
    token: float  # from token to token behind it


def expected_output(request: PlacementRequest, policy: Policy) -> float:
    """Tokens that an answer is expected to have."""
    most = request.output_tokens
    return min(most, policy.expected_tokens) if most else policy.expected_tokens


def best_of(
    request: PlacementRequest, candidates: Iterable[Candidate], policy: Policy, notes: list[Judgement] | None = None
) -> Candidate | None:
    """The candidate with the least score, of equals the one with the least id; `notes` gets a Judgement on each.

    The first token comes behind the prompts that wait before it and its own uncached one, of which one token at least
    is computed; and, where slots or blocks are missing, after running sequences have ended that leave both at once.
    One whose decoding alone takes longer than `hopeless` is left at that, unless there are notes to take.
    """
    prompt, output, known = request.prompt_tokens, expected_output(request, policy), request.cached_tokens
    first_goal, token_goal = request.first_token_seconds or inf, request.token_seconds or inf
    late, sticky = policy.late_weight, policy.stickiness_weight / max(1, prompt)
    ratio, slack, tokens, mix = policy.tie_ratio, policy.tie_seconds, prompt + output, 1 + share_of(request.key)
    best, least, cached, hopeless = None, inf, 0, inf
    pruned = notes is None and ratio < 1
    for each in candidates:  # inline, since this runs for each worker of the model and each request
        size, _, wait, rate, share, free, blocks, turn, token, crowd, crowded, held, extra, cost, taken, salt, _ = each
        if wait + output * token > hopeless:
            continue
        if known:
            cached = known.get(each.worker.worker_id, 0)
        needed = (prompt + size) // size  # blocks for one token more than the prompt
        if needed > free:
            share = max(share, (needed - free) / blocks)
        prefill = (prompt - cached if prompt > cached else 1) * rate
        first = wait + prefill + share * turn
        token += prompt * held
        score = first + crowd * prefill + output * (token + crowded) + extra + cost * tokens - sticky * cached
        if first > first_goal:
            score += late * (first - first_goal)
        if token > token_goal:
            score += late * output * (token - token_goal)
        score += ((score if score >= 0.0 else -score) * ratio + slack) * (mix * salt % 1.0 + taken)
        if notes is not None:
            notes.append(Judgement(score, first, token))
        if score <= least and (best is None or score < least or each.worker.worker_id < best.worker.worker_id):
            best, least = each, score
            if pruned:  # chance takes off a blur at most, what is cached the policy's weight
                hopeless = (max(0.0, least + slack) / (1 - ratio) + policy.stickiness_weight) * (1 + 1e-9)
    return best


def share_of(text: str) -> float:
    """A number in [0, 1) made of a text, the same in every process."""
    return int.from_bytes(blake2b(text.encode(), digest_size=6).digest(), "little") / 2**48
