"""What decided a placement, as data that people and programs read."""

import json
from collections.abc import Sequence
from typing import Any

from polyfleet.placement.fleet import Verdict
from polyfleet.placement.place import Placement

MAX_SHOWN = 16  # workers of each sort
MAX_TOLD = 2  # placements
MAX_TOLD_BYTES = 6_000  # where headers and trailers may have 8 KiB in all


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
        **_prefill(placement),
        "workers": [_numbers(each) for each in able[:most]],
        "dropped": [{"worker_id": each.worker_id, "reason": each.dropped} for each in dropped[:most]],
        "more": max(0, len(able) - most) + max(0, len(dropped) - most),
    }


def told(placements: Sequence[dict[str, Any]]) -> str:
    """The last of these as a JSON list in ASCII that fits a header: where ids or reasons are long, of fewer workers."""
    text, most = "[]", MAX_SHOWN
    while most:
        text = json.dumps([_shortened(each, most) for each in placements[-MAX_TOLD:]])
        if len(text) <= MAX_TOLD_BYTES:
            break
        most //= 2
    return text if most else json.dumps([_shortened(each, 0) for each in placements[-1:]])


def _shortened(found: dict[str, Any], most: int) -> dict[str, Any]:
    left_out = sum(max(0, len(found[sort]) - most) for sort in ("workers", "dropped"))
    fewer = {"workers": found["workers"][:most], "dropped": found["dropped"][:most]}
    return {**found, **fewer, "more": found["more"] + left_out}


def _prefill(placement: Placement) -> dict[str, Any]:
    """Where the prompt is computed, for models some of whose workers do only that."""
    if (apart := placement.apart) is None:
        return {}
    worker_id = apart.worker.worker_id if apart.worker else ""
    seconds, gain = round(apart.seconds, 4), round(apart.gain, 4)
    told = {"decision": apart.decision.value, "worker_id": worker_id, "seconds": seconds, "gain_seconds": gain}
    return {"prefill": told}


def _numbers(verdict: Verdict) -> dict[str, Any]:
    return {
        "worker_id": verdict.worker_id,
        "first_token_seconds": round(verdict.expected_wait_seconds, 4),
        "token_seconds": round(verdict.token_seconds, 5),
        "completion_seconds": round(verdict.completion_seconds, 4),
        "cached_tokens": verdict.cached_tokens,
        "score": round(verdict.score, 4),
    }
