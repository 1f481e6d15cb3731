"""Whether this gateway can serve: at least one ready worker, and not on its way out."""

from collections.abc import Callable


class Health:
    """Readiness for gRPC health and `/readyz`. `ready_workers` counts the workers that take sequences now."""

    def __init__(self, ready_workers: Callable[[], int]) -> None:
        self._ready_workers = ready_workers
        self.draining = False

    @property
    def serving(self) -> bool:
        """Whether new requests are welcome."""
        return not self.draining and self._ready_workers() > 0

    @property
    def reason(self) -> str:
        """Why not, in one sentence; empty while serving."""
        if self.draining:
            return "The gateway is shutting down."
        return "" if self._ready_workers() else "No worker is ready."
