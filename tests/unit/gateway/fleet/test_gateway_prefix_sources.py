"""Where a worker is told to fetch the beginning of a prompt, and when not."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from polyfleet.gateway.fleet.prefix_sources import LEAST_TOKENS, is_bound, prefill_source, prefix_source, reaches
from polyfleet.gateway.fleet.session import Session
from polyfleet.wire.hashing import prefix_root
from polyfleet.wire.images import SequenceImage
from polyfleet.wire.requests import Pooling, SequenceRequest
from polyfleet.wire.tickets import TransferOffer, computes, ticket_secret

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


def test_a_prompt_to_be_computed_elsewhere_has_a_ticket_that_says_so_and_time() -> None:
    there = session("there")
    found = prefill_source(replace(REQUEST, generated_ids=(1, 2)), there, 3.0)
    assert (found.address, found.tokens, found.seconds) == ("h:1", 2002, 7.0)
    assert computes(found.ticket)
    assert found.secret == ticket_secret(b"there" * 8, found.ticket, prefix_root("f", b"tenant", "adapter"))
    held = prefix_source(REQUEST, {"there": 1024}, HERE, [there])
    assert held is not None
    assert not computes(held.ticket)


@pytest.mark.parametrize(
    ("here", "there", "expected"),
    [
        (HERE, session("there"), True),
        (HERE, None, False),
        (HERE, session("there", connected=False), False),
        (HERE, session("there", address=""), False),
        (session("here", address=""), session("there"), False),
        (HERE, session("there", fingerprint="g"), False),
        (session("here", fingerprint=""), session("there", fingerprint=""), False),
    ],
)
def test_prompts_come_from_workers_that_are_reached_alone(here: Session, there: Session | None, expected: bool) -> None:
    assert reaches(here, there) is expected


@pytest.mark.parametrize(
    "change",
    [{"images": (SequenceImage(b"", b""),)}, {"pooling": Pooling.LAST}, {"prompt_logprobs": 0}],
)
def test_some_requests_are_bound_to_one_worker(change: dict[str, Any]) -> None:
    assert is_bound(replace(REQUEST, **change))
    assert not is_bound(REQUEST)
