"""Where a worker may fetch the beginning of a prompt: the worker of the same model that holds the most of it."""

from collections.abc import Iterable, Mapping

from polyfleet.gateway.fleet.session import Session
from polyfleet.wire.hashing import prefix_root
from polyfleet.wire.requests import SequenceRequest
from polyfleet.wire.tickets import PrefixSource, source_of

PATIENCE, SLACK_SECONDS = 2.0, 1.0  # what is computed elsewhere may take so many times as long, and that more
LEAST_TOKENS = 256  # more than the worker has itself: fewer are computed in less than the words about them take


def prefix_source(
    request: SequenceRequest, cached: Mapping[str, int], here: Session, sessions: Iterable[Session]
) -> PrefixSource | None:
    """For a sequence that goes `here`; None where no other worker is taken to hold so much more of its prompt.

    `cached` are tokens of it by worker. Prefixes with images, and those of models without a fingerprint, don't travel.
    """
    fingerprint, most = here.info.model.fingerprint, cached.get(here.worker_id, 0) + LEAST_TOKENS - 1
    if request.images or request.pooling or not here.offer.address or not fingerprint:
        return None
    found: Session | None = None
    for each in sessions:
        held = cached.get(each.worker_id, 0)
        if held > most and each.connected and each.offer.address and each.info.model.fingerprint == fingerprint:
            found, most = each, held
    if found is None or found is here:
        return None
    root = prefix_root(fingerprint, request.cache_salt, request.adapter)
    return source_of(found.offer, root, most)


def is_bound(request: SequenceRequest) -> bool:
    """Whether nothing that is computed of its prompt can come from another worker."""
    return bool(request.images or request.pooling or request.prompt_logprobs is not None)


def reaches(here: Session, there: Session | None) -> bool:
    """Whether the worker `here` can have prompts from `there`: both have a transfer channel, and one model."""
    fingerprint = here.info.model.fingerprint
    alike = there is not None and fingerprint and there.info.model.fingerprint == fingerprint
    return bool(alike and there and there.connected and there.offer.address and here.offer.address)


def prefill_source(request: SequenceRequest, there: Session, seconds: float) -> PrefixSource:
    """For a sequence whose prompt the worker `there` is to compute in about so many seconds."""
    root = prefix_root(there.info.model.fingerprint, request.cache_salt, request.adapter)
    tokens = len(request.prompt_ids) + len(request.generated_ids)
    return source_of(there.offer, root, tokens, PATIENCE * seconds + SLACK_SECONDS)
