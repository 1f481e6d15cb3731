"""How loading tells how far it is."""

from collections.abc import Callable

Progress = Callable[[float], None]  # called with the share done, 0 to 1


def silent(share: float) -> None:
    """A Progress that tells nobody."""
