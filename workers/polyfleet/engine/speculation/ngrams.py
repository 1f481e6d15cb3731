"""Drafts by prompt lookup: what followed the last tokens where they stood before, in the prompt or in the answer."""

from collections.abc import Mapping

from polyfleet.engine.step.sequence import Sequence

LOOKED_AT = 8  # earlier places of the last tokens, the latest first: of these the one with the longest match counts
KEPT = 0.9  # of what was learned of a sequence, with each token more
LEARNED = 0.02  # of all sequences' chances, from a token
PRIOR = 2.0  # tokens that all sequences' chances count for in each one's


class History:
    """A sequence's tokens, and where each n-gram of `least` of them last ended. Any token costs the same."""

    def __init__(self, least: int, most: int) -> None:
        self.tokens: list[int] = []
        self.place = -1  # behind which the next token is guessed to stand again; -1: nowhere
        self.length = 0  # tokens up to there that are the last ones, `most` at most
        self._least = least
        self._most = most
        self._ends: dict[tuple[int, ...], int] = {}
        self._before: list[int] = []  # of each token where the n-gram that ends there ended before it

    def append(self, token_id: int) -> None:
        """One token more."""
        tokens, end = self.tokens, len(self.tokens)
        tokens.append(token_id)
        before = -1
        if end + 1 >= self._least:
            ngram = tuple(tokens[end + 1 - self._least :])
            before = self._ends.get(ngram, -1)
            self._ends[ngram] = end
        self._before.append(before)

    def look(self) -> None:
        """Find the match of the last tokens."""
        self.place, self.length = -1, 0
        place = self._before[-1] if self._before else -1
        for _ in range(LOOKED_AT):
            if place < 0 or self.length == self._most:
                return
            length = self._matching(place)
            if length > self.length:
                self.place, self.length = place, length
            place = self._before[place]

    def guess(self, number: int) -> list[int]:
        """What followed there; it goes on with itself where it comes to the end."""
        start = self.place + 1
        found = self.tokens[start : start + number]
        for index in range(len(found), number):
            found.append(found[index - (len(self.tokens) - start)])
        return found

    def _matching(self, place: int) -> int:
        tokens, last = self.tokens, len(self.tokens) - 1
        for length in range(self._least, min(self._most, place + 1)):
            if tokens[place - length] != tokens[last - length]:
                return length
        return min(self._most, place + 1)


class NgramDrafter:
    """Drafts by prompt lookup. How good they are is learned from every token, whether it was drafted or not.

    A match of more tokens is followed by the same token more often: chances are kept by its length.
    """

    def __init__(self, least: int, most: int) -> None:
        """Matches of `least` to `most` tokens."""
        self._sizes = least, most
        self._chances = [1 - 0.5 ** (length / 2) for length in range(most + 1)]  # of all sequences, by length
        self._known: dict[Sequence, _Known] = {}

    def chances(self, sequence: Sequence, number: int) -> list[float]:
        """How likely each of so many drafts is to be drawn where those before it were; none where nothing matches."""
        known = self._learn(sequence)
        history, most = known.history, self._sizes[1]
        if history.place < 0:
            return []
        lengths = (min(most, history.length + index) for index in range(number))
        return [known.chance(length, self._chances[length]) for length in lengths]

    def draft(self, wanted: Mapping[Sequence, int]) -> dict[Sequence, list[int]]:
        """So many drafts for each of these sequences, whose chances were asked for since their last token."""
        return {sequence: self._known[sequence].history.guess(number) for sequence, number in wanted.items()}

    def forget(self, sequence: Sequence) -> None:
        """A sequence has ended."""
        self._known.pop(sequence, None)

    def _learn(self, sequence: Sequence) -> "_Known":
        """What is known of a sequence, its latest tokens included."""
        known = self._known.get(sequence)
        prompt = sequence.request.prompt_ids
        if known is None:
            known = self._known[sequence] = _Known(*self._sizes)
            for token_id in prompt:
                known.history.append(token_id)
            known.history.look()
        history = known.history
        for token_id in sequence.generated_ids[len(history.tokens) - len(prompt) :]:
            if history.place >= 0:
                length, right = history.length, history.tokens[history.place + 1] == token_id
                known.learn(length, right)
                self._chances[length] += LEARNED * (right - self._chances[length])
            history.append(token_id)
            history.look()
        return known


class _Known:
    """A sequence's history, and how often guesses behind a match of each length were right of late."""

    def __init__(self, least: int, most: int) -> None:
        self.history = History(least, most)
        self._right = [0.0] * (most + 1)
        self._tried = [0.0] * (most + 1)

    def learn(self, length: int, right: bool) -> None:
        self._right[length] = KEPT * self._right[length] + right
        self._tried[length] = KEPT * self._tried[length] + 1

    def chance(self, length: int, usual: float) -> float:
        return (self._right[length] + PRIOR * usual) / (self._tried[length] + PRIOR)
