"""SentencePiece tokenising as llama.cpp does it, written from its description: slow, plain, without any library."""

from collections.abc import Sequence
from itertools import pairwise

CONTROL, USER_DEFINED, UNKNOWN = 3, 4, 2
SPACE = "▁"


class LlamaCppSpm:
    """Of a vocabulary as GGUF states it; `add_space_prefix` puts a space before each stretch of text."""

    def __init__(
        self, tokens: Sequence[str], types: Sequence[int], scores: Sequence[float], add_space_prefix: bool
    ) -> None:
        self.tokens, self.scores, self.add_space_prefix = tokens, scores, add_space_prefix
        self.ids = {token: token_id for token_id, token in enumerate(tokens)}
        whole = [token for token, kind in zip(tokens, types, strict=True) if kind in (CONTROL, USER_DEFINED, UNKNOWN)]
        self.whole = sorted(whole, key=lambda token: -len(token.encode()))

    def encode(self, text: str) -> list[int]:
        """Ids without BOS and EOS, added tokens of all kinds looked for."""
        fragments: list[str | int] = [text] if text else []
        for token in self.whole:
            fragments = [part for fragment in fragments for part in self._split(fragment, token)]
        ids: list[int] = []
        behind_token = True
        for fragment in fragments:
            if isinstance(fragment, int):
                ids.append(fragment)
            else:
                prefix = " " if self.add_space_prefix and behind_token else ""
                ids += self._merge((prefix + fragment).replace(" ", SPACE))
            behind_token = isinstance(fragment, int)
        return ids

    def _split(self, fragment: str | int, token: str) -> list[str | int]:
        if isinstance(fragment, int):
            return [fragment]
        parts: list[str | int] = []
        for number, piece in enumerate(fragment.split(token)):
            parts += [self.ids[token]] if number else []
            parts += [piece] if piece else []
        return parts

    def _merge(self, text: str) -> list[int]:
        """The pair whose union scores best is joined first, the leftmost of equals."""
        symbols = list(text)
        while True:
            pairs = [self.ids.get(left + right) for left, right in pairwise(symbols)]
            found = [(-self.scores[token_id], place) for place, token_id in enumerate(pairs) if token_id is not None]
            if not found:
                break
            _, place = min(found)
            symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]
        return [token_id for symbol in symbols for token_id in self._spell(symbol)]

    def _spell(self, symbol: str) -> list[int]:
        if symbol in self.ids:
            return [self.ids[symbol]]
        return [self.ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
