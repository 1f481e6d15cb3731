"""Workers that nobody reaches, for views of a fleet that are apart from it."""

from collections.abc import Callable

from polyfleet.gateway.fleet.dialling import Conversation


async def undialled(address: str, received: Callable[[bytes], None]) -> Conversation:
    """A `Dial`."""
    raise ConnectionRefusedError(f"Nobody dials {address}.")
