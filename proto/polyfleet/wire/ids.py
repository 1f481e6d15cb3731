"""Identifiers: short, sortable by nothing, safe in file names, labels and Kubernetes names."""

import secrets


def new_id(kind: str) -> str:
    """`<kind>-` and 12 hexadecimal digits: 48 random bits, for workers, gateways and requests of one fleet."""
    return f"{kind}-{secrets.token_hex(6)}"


def sequence_id(request_id: str, choice: int) -> str:
    """The name of a request's continuation number `choice` within a session."""
    return f"{request_id}/{choice}"
