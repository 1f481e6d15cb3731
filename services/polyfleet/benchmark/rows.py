"""Rows of benchmarks: one per figure and peer."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `ratio` over 1 means better than the peer; None where there is no peer or nothing to divide."""

    name: str
    value: float | None
    unit: str
    peer: str = ""
    peer_value: float | None = None
    ratio: float | None = None
    command: str = ""
    commit: str = ""


def compare(
    name: str,
    value: float | None,
    unit: str,
    peer: str = "",
    peer_value: float | None = None,
    *,
    lower_is_better: bool = False,
) -> Row:
    """A row with its ratio."""
    above, below = (peer_value, value) if lower_is_better else (value, peer_value)
    ratio = above / below if above is not None and below else None
    return Row(name, value, unit, peer, peer_value, ratio)
