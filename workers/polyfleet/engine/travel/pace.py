"""Pace: whether getting a beginning's keys and values has lately been faster than computing them. Pure."""

_FORGETTING = 0.9  # of a pace that was too slow: so it is tried again some time


class Pace:
    """Seconds a token, learnt as it goes."""

    def __init__(self) -> None:
        self._seconds_per_token = 0.0  # 0: not known

    def learn(self, tokens: int, seconds: float) -> None:
        """So many tokens took so long."""
        self._seconds_per_token = mean(self._seconds_per_token, seconds / tokens)

    def slower_than(self, tokens_per_second: float) -> bool:
        """Than computing; said less and less surely each time. 0: how fast that is is not known."""
        if self._seconds_per_token * tokens_per_second <= 1.0:
            return False
        self._seconds_per_token *= _FORGETTING
        return True


def mean(before: float, now: float) -> float:
    """Of what was before and what is now, in equal parts; what is now, where nothing was."""
    return (before + now) / 2 if before else now
