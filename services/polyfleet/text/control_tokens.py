"""The tokens that steer a model: which they are, and where a prompt spells them."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from polyfleet.wire.limits import ROLES

_SPACE = re.compile(r"\s*")
_STEERING = re.compile(r"<[|｜].+[|｜]>", re.DOTALL)  # no text that a model was trained on spells a token like this


@dataclass(frozen=True, slots=True)
class Found:
    """A control token in a text: its id, and the part of the text that it stands for."""

    token_id: int
    start: int
    end: int


class ControlTokens:
    """A tokenizer's special tokens, and the added ones that are used like them, however they are declared.

    `definition` is the `tokenizers` JSON object. Those are used so which `named` (spellings) or `ends` (ids) hold,
    those spelled `<|…|>`, and those with punctuation that the chat template spells, or puts together around a role.
    """

    def __init__(
        self, definition: Mapping[str, Any], template: str, named: Collection[str] = (), ends: Collection[int] = ()
    ) -> None:
        added = {token["content"]: token for token in definition.get("added_tokens") or () if token["content"]}
        self._tokens = {
            spelling: token
            for spelling, token in added.items()
            if token.get("special")
            or spelling in named
            or token["id"] in ends
            or _STEERING.fullmatch(spelling)
            or (_is_marker(spelling) and _writes(template, spelling))
        }
        self.ids = frozenset(token["id"] for token in self._tokens.values())
        self.spellings = tuple(sorted(self._tokens, key=len, reverse=True))
        self._pattern = re.compile("|".join(map(re.escape, self.spellings)) or r"(?!)")

    def declare(self, definition: Mapping[str, Any]) -> dict[str, Any]:
        """The definition with every control token declared special: then its spelling can be read as plain text."""
        added = [
            {**token, "special": token.get("special") or token["content"] in self._tokens}
            for token in definition.get("added_tokens") or ()
        ]
        return {**definition, "added_tokens": added}

    def find(self, text: str) -> Iterator[Found]:
        """Every control token that `text` spells, from left to right, with the space that it takes up."""
        done = 0
        for match in self._pattern.finditer(text):
            token, start, end = self._tokens[match[0]], match.start(), match.end()
            if start < done or (token.get("single_word") and (_word_at(text, start - 1) or _word_at(text, end))):
                continue
            if token.get("lstrip"):
                start = max(done, len(text[done:start].rstrip()) + done)
            if token.get("rstrip") and (space := _SPACE.match(text, end)):
                end = space.end()
            yield Found(token["id"], start, end)
            done = end


def _writes(template: str, spelling: str) -> bool:
    around_roles = (spelling.split(role) for role in ROLES if role in spelling)
    return spelling in template or any(all(part in template for part in parts) for parts in around_roles)


def _is_marker(spelling: str) -> bool:
    """Whether it has punctuation, U+2581 for a space aside."""
    return any(not each.isalnum() and not each.isspace() and each != "\u2581" for each in spelling)


def _word_at(text: str, index: int) -> bool:
    return 0 <= index < len(text) and (text[index].isalnum() or text[index] == "_")
