"""What a step needs of an executor, as bits."""

from enum import IntFlag


class Need(IntFlag):
    """What a step asks for beyond the likeliest token of each draw; a step that needs nothing pays for nothing.

    OUTPUTS is asked of graphs whose outputs have a row for each row of the step.
    """

    NOTHING = 0
    RANDOM = 1
    PENALTIES = 2
    LOGPROBS = 4
    MASKS = 8
    POOLING = 16
    OUTPUTS = 32
    ADAPTERS = 64


MASKS = int(Need.MASKS)
OF_ROWS = int(Need.ADAPTERS)  # needs of a sequence's rows, whether or not they draw
NO_ADAPTER = -1
NEEDS = [Need(bits) for bits in range(2 * max(Need))]
MASKED = [bool(bits & MASKS) for bits in range(len(NEEDS))]  # by needs, for asking a Need costs many times as much
ADAPTED = [bool(bits & OF_ROWS) for bits in range(len(NEEDS))]
LIKELIEST = [bits in (0, OF_ROWS) for bits in range(len(NEEDS))]  # draws of the likeliest token and no more


def needs_of_rows(adapter: int) -> Need:
    """What every row of a sequence with this adapter needs."""
    return Need.NOTHING if adapter == NO_ADAPTER else Need.ADAPTERS
