"""What decided a placement, as data that people and programs read."""

from typing import Any

from polyfleet.placement.fleet import Verdict
from polyfleet.placement.place import Placement

MAX_SHOWN = 16  # workers of each sort


def explained(placement: Placement, most: int = MAX_SHOWN) -> dict[str, Any]:
    """The worker chosen, the policy, and what was thought of others: the best `most` that could serve, best first, and
    as many of those dropped; `more` counts those left out. Seconds; the least score won where the policy is completion.
    """
    verdicts = placement.verdicts
    able = sorted((each for each in verdicts if not each.dropped), key=lambda each: each.score)
    dropped = [each for each in verdicts if each.dropped]
    return {
        "worker_id": placement.worker.worker_id if placement.worker else "",
        "policy": placement.policy.policy,
        "prompt_tokens": placement.request.prompt_tokens,
        "workers": [_numbers(each) for each in able[:most]],
        "dropped": [{"worker_id": each.worker_id, "reason": each.dropped} for each in dropped[:most]],
        "more": max(0, len(able) - most) + max(0, len(dropped) - most),
    }


def _numbers(verdict: Verdict) -> dict[str, Any]:
    return {
        "worker_id": verdict.worker_id,
        "first_token_seconds": round(verdict.expected_wait_seconds, 4),
        "token_seconds": round(verdict.token_seconds, 5),
        "completion_seconds": round(verdict.completion_seconds, 4),
        "cached_tokens": verdict.cached_tokens,
        "score": round(verdict.score, 4),
    }
