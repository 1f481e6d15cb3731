"""Tickets: what lets one worker take a prefix's keys and values from another, and nothing else.

Each worker draws a key when it starts and tells it to the gateways that it talks to. A gateway issues a ticket for one
transfer: a number of its own, and the secret that the worker's key, that number and the prefix's root give. The number
travels openly, the secret only to the worker that is to fetch; the other one works it out. Each proves to the other
that it has it. The root names model, adapter and tenant (`hashing.prefix_root`), so a ticket for one opens no other.
A number of one byte more lets the other worker compute what it does not hold.
"""

import secrets
from dataclasses import dataclass, field
from hashlib import blake2b
from hmac import compare_digest

KEY_BYTES = 32
NUMBER_BYTES = CHALLENGE_BYTES = 16
_COMPUTES = b"\1"  # behind a ticket's number


@dataclass(frozen=True, slots=True)
class TransferOffer:
    """Where a worker gives prefixes away: host:port, and the name that processes of its host reach it by, if any."""

    address: str
    local: str = ""
    key: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class PrefixSource:
    """Where a sequence's worker may fetch the beginning of its prompt, and the ticket for it."""

    address: str  # host:port
    local: str = ""  # as in TransferOffer
    ticket: bytes = b""
    secret: bytes = field(default=b"", repr=False)
    tokens: int = 0  # of the prompt, that the other worker is taken to hold, or that it is to compute
    seconds: float = 0.0  # that it may take to compute them, all else included; 0: it only gives what it holds


def new_key() -> bytes:
    """For a worker, once in its life."""
    return secrets.token_bytes(KEY_BYTES)


def source_of(offer: TransferOffer, root: bytes, tokens: int, seconds: float = 0.0) -> PrefixSource:
    """A new ticket for the prefixes of one root; with `seconds` the other worker may compute them."""
    number = secrets.token_bytes(NUMBER_BYTES) + (_COMPUTES if seconds else b"")
    secret = ticket_secret(offer.key, number, root)
    return PrefixSource(offer.address, offer.local, number, secret, tokens, seconds)


def computes(number: bytes) -> bool:
    """Whether a ticket of this number lets the worker compute what is asked for."""
    return number[NUMBER_BYTES:] == _COMPUTES


def ticket_secret(key: bytes, number: bytes, root: bytes) -> bytes:
    """What a ticket of this number opens the prefixes of this root with."""
    return blake2b(number + root, digest_size=KEY_BYTES, key=key, person=b"transfer ticket").digest()


def proof(secret: bytes, side: str, challenges: bytes) -> bytes:
    """That this side ("fetch" or "serve") has the secret: `challenges` are the fetching one's and then the other's."""
    return blake2b(challenges, digest_size=KEY_BYTES, key=secret, person=b"proof " + side.encode()).digest()


def proves(given: bytes, secret: bytes, side: str, challenges: bytes) -> bool:
    """Whether a proof is right."""
    return compare_digest(given, proof(secret, side, challenges))
