"""Stop strings, found across the borders of the pieces that text comes in.

Text ends at the first character that completes a stop string; of several that end there, the longest is cut off. The
result does not depend on how the text was cut into pieces. The automaton is Aho and Corasick's ("Efficient string
matching", CACM 18(6), 1975): its depth after each character is the length of the longest tail that could still become
a stop string, which is exactly what has to be held back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import compress

from polyfleet.wire.requests import GenerateRequest


class StopStrings:
    """The automaton of a set of stop strings, none empty. Immutable; share it between matchers.

    What the first `min_tokens` tokens of a text complete does not count.
    """

    def __init__(self, stops: Sequence[str], min_tokens: int = 0) -> None:
        self.min_tokens = min_tokens
        self._children: list[dict[str, int]] = [{}]
        self._fallback = [0]
        self._depth = [0]
        self._match = [0]  # length of the longest stop string that ends in this state, 0 for none
        for stop in stops:
            self._insert(stop)
        self._link()
        self._firsts = frozenset(self._children[0])

    @classmethod
    def of(cls, request: GenerateRequest) -> StopStrings | None:
        """Those of a request; None where it has none."""
        return cls(request.stop, request.min_tokens) if request.stop else None

    def _insert(self, stop: str) -> None:
        state = 0
        for character in stop:
            child = self._children[state].get(character)
            if child is None:
                child = len(self._children)
                self._children[state][character] = child
                self._children.append({})
                self._fallback.append(0)
                self._depth.append(self._depth[state] + 1)
                self._match.append(0)
            state = child
        self._match[state] = len(stop)

    def _link(self) -> None:
        queue = deque(self._children[0].values())
        while queue:
            state = queue.popleft()
            for character, child in self._children[state].items():
                self._fallback[child] = self.step(self._fallback[state], character)
                self._match[child] = self._match[child] or self._match[self._fallback[child]]
                queue.append(child)

    def step(self, state: int, character: str) -> int:
        """The state after one more character."""
        while state and character not in self._children[state]:
            state = self._fallback[state]
        return self._children[state].get(character, 0)

    def can_skip(self, text: str) -> bool:
        """Whether no stop string begins within `text`."""
        return self._firsts.isdisjoint(text)

    def depth(self, state: int) -> int:
        """How many characters of the tail could still become a stop string."""
        return self._depth[state]

    def match(self, state: int) -> int:
        """Length of the longest stop string that has just been completed; 0: none has."""
        return self._match[state]


class StopMatcher:
    """Watches one text. `matched` is the stop string that was completed, once one was; nothing comes out after that.

    Parts of the text may be invisible (special tokens): they are matched like the others and never come out.
    """

    def __init__(self, stops: StopStrings) -> None:
        self._stops = stops
        self._state = 0
        self._held = ""
        self._visible: list[bool] = []  # parallel to the characters held
        self._uncounted = stops.min_tokens  # tokens to come whose matches don't count
        self.matched = ""

    def add_token(self, special: str, shown: str) -> str:
        """The same for one token, of which `special` is matched and `shown` is matched and visible."""
        text = self.add(special, visible=False) + self.add(shown)
        self._uncounted = max(0, self._uncounted - 1)
        return text

    def add(self, piece: str, visible: bool = True) -> str:
        """The text that `piece` makes safe to show: all but the shortest tail that may yet become a stop string."""
        if self.matched or (not self._state and self._stops.can_skip(piece)):
            return piece if visible and not self.matched else ""
        start = len(self._held)
        self._held += piece
        self._visible += [visible] * len(piece)
        for end, character in enumerate(piece, start + 1):
            self._state = self._stops.step(self._state, character)
            if not self._uncounted and (length := self._stops.match(self._state)):
                self.matched = self._held[end - length : end]
                return self._release(end - length)
        return self._release(len(self._held) - self._stops.depth(self._state))

    def _release(self, count: int) -> str:
        """What is visible of the first `count` characters held."""
        text = "".join(compress(self._held[:count], self._visible))
        self._held, self._visible = self._held[count:], self._visible[count:]
        return text

    def finish(self) -> str:
        """The tail that was held back, when the text ends without a match."""
        self._state = 0
        return "" if self.matched else self._release(len(self._held))
