"""Whether this gateway can serve: at least one ready worker, and not on its way out."""

from collections.abc import Callable


class Health:
    """Readiness for gRPC health and `/readyz`. `ready_workers` counts the workers that take sequences now,
    `why` says why there is none."""

    def __init__(self, ready_workers: Callable[[], int], why: Callable[[], str] = str) -> None:
        self._ready_workers, self._why = ready_workers, why
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
        return "" if self._ready_workers() else f"No worker is ready. {self._why()}".strip()
