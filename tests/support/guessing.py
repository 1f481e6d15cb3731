"""A drafter for tests, which knows what a FakeExecutor draws and is wrong as often as it is told to be."""

import random
from collections.abc import Mapping
from collections.abc import Sequence as Items

from tests.support.fake_executor import VOCABULARY, next_token

from polyfleet.engine.step.sequence import Sequence


class Guesser:
    """Drafts the tokens that an unmasked sequence draws, each right with a chance of `right`."""

    def __init__(self, right: float, seed: int = 0) -> None:
        self._right = right
        self._rng = random.Random(seed)
        self.forgotten: list[Sequence] = []

    def chances(self, sequence: Sequence, number: int) -> Items[float]:
        """Certain, now and then of fewer or none."""
        return [1.0] * self._rng.randint(0, number)

    def draft(self, wanted: Mapping[Sequence, int]) -> Mapping[Sequence, Items[int]]:
        """Fewer now and then."""
        return {each: self.guess(each, self._rng.randint(number // 2, number)) for each, number in wanted.items()}

    def forget(self, sequence: Sequence) -> None:
        """It is told once of each that has ended."""
        assert sequence not in self.forgotten
        self.forgotten.append(sequence)

    def guess(self, sequence: Sequence, number: int) -> list[int]:
        """What follows, as far as it is not to be wrong."""
        tokens, drafts = [*sequence.request.prompt_ids, *sequence.generated_ids], list[int]()
        for _ in range(number):
            token_id = next_token([*tokens, *drafts], sequence.request.sampling.seed, sequence.request.choice)
            if self._rng.random() > self._right:
                token_id = self._rng.randrange(VOCABULARY)
            drafts.append(token_id)
        return drafts
