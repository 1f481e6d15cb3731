"""Part: a sequence's share of a step under way; and how one fails."""

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import NamedTuple

from polyfleet.engine.step.sequence import Place, Sequence
from polyfleet.wire.answers import INTERNAL, SampledToken

MOST_DRAWS = 2**31  # of a sequence in one step, where no mask says less


class Failed(NamedTuple):
    """A sequence as it was placed, why it can't go on, and the google.rpc code of that."""

    sequence: Sequence
    place: Place
    why: str
    code: int = INTERNAL


@dataclass(slots=True)
class Part:
    """A sequence's share of a step: its place then, its rows, the tokens it draws, and the drafts among its rows.

    `targets` are tokens of its prompt, where each row looks up the one behind it.
    """

    sequence: Sequence
    place: Place
    size: int
    draws: int
    targets: Items[int] = ()
    drafts: Items[int] = ()
    most: int = MOST_DRAWS  # draws that count

    @property
    def num_draws(self) -> int:
        """Of the plan's draws, its own."""
        return len(self.targets) or self.draws

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives beside each of its draws; None: no logprobs."""
        request = self.sequence.request
        return request.prompt_logprobs if self.targets else request.logprobs

    def leave_out(self, index: int) -> None:
        """No draw from this one on counts: its mask can't be told, or bars the draft before it."""
        self.most = min(self.most, index)

    def verified(self, tokens: Items[SampledToken]) -> Items[SampledToken]:
        """Of its draws those that count: up to the first that is not what was drafted, that one included."""
        for index, draft in enumerate(self.drafts, 1):
            if tokens[index - 1].token_id != draft or index >= self.most:
                return tokens[:index]
        return tokens


def first_line(error: BaseException | None) -> str:
    """An error's kind and its first line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
