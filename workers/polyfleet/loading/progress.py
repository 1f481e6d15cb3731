"""How loading tells how far it is."""

from collections.abc import Callable

Progress = Callable[[float], None]  # called with the share done, 0 to 1


def silent(share: float) -> None:
    """A Progress that tells nobody."""


def halves(progress: Progress) -> tuple[Progress, Progress]:
    """For two things that are done one after the other, and each tell the share of theirs."""
    return lambda share: progress(share / 2), lambda share: progress(0.5 + share / 2)
