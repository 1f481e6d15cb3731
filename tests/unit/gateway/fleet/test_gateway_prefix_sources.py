"""Where a worker is told to fetch the beginning of a prompt, and when not."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from polyfleet.gateway.fleet.prefix_sources import LEAST_TOKENS, prefix_source
from polyfleet.gateway.fleet.session import Session
from polyfleet.wire.hashing import prefix_root
from polyfleet.wire.images import SequenceImage
from polyfleet.wire.requests import Pooling, SequenceRequest
from polyfleet.wire.tickets import TransferOffer, ticket_secret

REQUEST = SequenceRequest("s", tuple(range(2000)), cache_salt=b"tenant", adapter="adapter")


def session(worker_id: str, *, fingerprint: str = "f", address: str = "h:1", connected: bool = True) -> Session:
    """As far as it is looked at."""
    info = SimpleNamespace(model=SimpleNamespace(fingerprint=fingerprint))
    offer = TransferOffer(address, "local", worker_id.encode() * 8)
    return cast(Session, SimpleNamespace(worker_id=worker_id, info=info, offer=offer, connected=connected))


HERE = session("here")


def test_the_one_that_holds_most_gives_a_ticket_for_this_prefix_alone() -> None:
    others = [session("little"), session("much"), HERE]
    found = prefix_source(REQUEST, {"little": 512, "much": 1024, "here": 64}, HERE, others)
    assert found is not None
    assert (found.address, found.local, found.tokens) == ("h:1", "local", 1024)
    root = prefix_root("f", b"tenant", "adapter")
    assert found.secret == ticket_secret(b"much" * 8, found.ticket, root)
    again = prefix_source(REQUEST, {"much": 1024}, HERE, others)
    assert again is not None
    assert again.ticket != found.ticket


@pytest.mark.parametrize(
    ("there", "held"),
    [
        (session("there"), {"there": LEAST_TOKENS + 63, "here": 64}),
        (session("there"), {"there": 1024, "here": 1024}),
        (session("there", fingerprint="g"), {"there": 1024}),
        (session("there", address=""), {"there": 1024}),
        (session("there", connected=False), {"there": 1024}),
        (HERE, {"here": 1024}),
    ],
)
def test_nobody_holds_more_that_could_give_it(there: Session, held: dict[str, int]) -> None:
    assert prefix_source(REQUEST, held, HERE, [there]) is None


@pytest.mark.parametrize("change", [{"images": (SequenceImage(b"", b""),)}, {"pooling": Pooling.LAST}])
def test_some_prompts_do_not_travel(change: dict[str, Any]) -> None:
    assert prefix_source(replace(REQUEST, **change), {"there": 1024}, HERE, [session("there")]) is None


@pytest.mark.parametrize("here", [session("here", address=""), session("here", fingerprint="")])
def test_a_worker_that_fetches_nothing_is_told_of_nothing(here: Session) -> None:
    others = [session("there", fingerprint=here.info.model.fingerprint)]
    assert prefix_source(REQUEST, {"there": 1024}, here, others) is None
