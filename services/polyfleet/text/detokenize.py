"""Incremental detokenisation: token ids in, text out, never half a character, constant work per token.

Byte-level vocabularies map each token to bytes, so text is those bytes through an incremental UTF-8 decoder: exactly
what decoding all ids at once gives. Other decoders (SentencePiece's byte fallback, say) go through the tokenizer
itself over a short window of the last tokens.
"""

import codecs
from collections.abc import Iterable, Sequence
from typing import Protocol

REPLACEMENT = "\ufffd"
LONGEST_CHARACTER = 4  # bytes of a character in UTF-8, hence tokens at most
MAX_HELD_TOKENS = 16  # a window whose text still ends broken after so many tokens will not be mended
_new_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer(Protocol):
    """Turns one sequence's ids into text as they come; concatenated, its pieces are the whole text."""

    def add(self, token_ids: Iterable[int]) -> str:
        """The text that these ids complete."""
        ...

    def finish(self) -> str:
        """What was held back, U+FFFD where a character stayed incomplete."""
        ...


class Decoder(Protocol):
    """Decodes ids all at once, without special tokens."""

    def __call__(self, token_ids: Sequence[int]) -> str:
        """The text of these ids."""
        ...


class ByteDetokenizer:
    """For byte-level vocabularies. `pieces[id]` holds the token's bytes, empty for special tokens."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces
        self._utf8 = _new_decoder("replace")

    def add(self, token_ids: Iterable[int]) -> str:
        """The text that these ids complete; ids beyond the vocabulary have none."""
        pieces, size = self._pieces, len(self._pieces)
        return self._utf8.decode(b"".join([pieces[i] for i in token_ids if i < size]))

    def finish(self) -> str:
        """U+FFFD when the last character stayed incomplete."""
        return self._utf8.decode(b"", final=True)


class WindowDetokenizer:
    """For every other decoder.

    The window is the tokens of the last piece (their text is known: decoders treat a first token differently, so new
    tokens are never decoded alone) and the tokens behind it that still end within a character.
    """

    def __init__(self, decode: Decoder) -> None:
        self._decode = decode
        self._context: list[int] = []
        self._context_text = ""
        self._held: list[int] = []

    def add(self, token_ids: Iterable[int]) -> str:
        """The text that these ids complete."""
        piece = ""
        for token_id in token_ids:
            self._held.append(token_id)
            text = self._decode(self._context + self._held)
            if not text.endswith(REPLACEMENT):
                piece += self._take(len(self._held), text)
            elif len(self._held) > MAX_HELD_TOKENS:
                count = len(self._held) - LONGEST_CHARACTER
                piece += self._take(count, self._decode(self._context + self._held[:count]))
        return piece

    def _take(self, count: int, text: str) -> str:
        """The new part of `text`, that of the context and the first `count` held tokens, which become the context."""
        known = self._context_text
        new = text[len(known) :] if text.startswith(known) else self._decode(self._held[:count])
        self._context = self._held[:count]
        self._held = self._held[count:]
        self._context_text = self._decode(self._context)
        return new

    def finish(self) -> str:
        """What was held back, as the tokenizer decodes it."""
        return self._take(len(self._held), self._decode(self._context + self._held)) if self._held else ""


def byte_alphabet() -> dict[str, int]:
    """The characters by which byte-level vocabularies spell bytes.

    Printable Latin-1 stands for itself, the other 68 bytes in order for the characters from U+0100 on (the byte
    alphabet of GPT-2's BPE).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def byte_pieces(spellings: Iterable[str | None]) -> tuple[bytes, ...]:
    """The bytes of each token; None (no token, or a special one) has none.

    A token with a character outside the alphabet, as added tokens may have, stands for its own UTF-8.
    """
    byte_of = byte_alphabet()

    def piece(spelling: str) -> bytes:
        try:
            return bytes([byte_of[character] for character in spelling])
        except KeyError:
            return spelling.encode()

    return tuple(piece(spelling) if spelling else b"" for spelling in spellings)
