"""Which of several schedulers is listened to: one that was cut off and replaced may come back. Times are given."""

FORGOTTEN_SECONDS = 30.0  # without a word of the later one, which may have lost its state and begun with a lower number


class Lives:
    """The generations of the schedulers that spoke, in turn."""

    def __init__(self) -> None:
        self._latest = 0
        self._heard = 0.0

    def admits(self, generation: int, now: float) -> bool:
        """Whether a snapshot of this generation (0: not known) counts at this second."""
        if 0 < generation < self._latest and now - self._heard < FORGOTTEN_SECONDS:
            return False
        self._latest, self._heard = generation or self._latest, now
        return True
