"""Incremental detokenisation: token ids in, text out, never half a character, constant work per token.

An answer goes on where its prompt ended: its text is that of prompt and answer together less that of the prompt. So a
word at its beginning keeps its space, and a character that the prompt left half is completed by it.

Byte-level vocabularies map each token to bytes, so text is those bytes through an incremental UTF-8 decoder: exactly
what decoding all ids at once gives. Other decoders (SentencePiece's byte fallback, say) go through the tokenizer
itself over a short window of the last tokens.
"""

import codecs
from collections.abc import Iterable, Sequence
from typing import Protocol

REPLACEMENT = "\ufffd"
LONGEST_CHARACTER = 4  # bytes of a character in UTF-8, hence tokens at most
SHORTEST_CONTEXT = 8  # tokens of a prompt that an answer's first window begins with
MAX_HELD_TOKENS = 16  # a window whose text still ends broken after so many tokens will not be mended


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

    def __init__(self, pieces: Sequence[bytes], prompt_ids: Sequence[int] = ()) -> None:
        self._pieces = pieces
        self._held = b""  # of a character that is not complete
        tail = b""
        for token_id in reversed(prompt_ids):
            if len(tail) >= LONGEST_CHARACTER:
                break
            tail = self._bytes((token_id,)) + tail
        self._decode(tail)
        self._prompt_broken = bool(self._held)  # it ends within a character, which may stay broken

    def _bytes(self, token_ids: Iterable[int]) -> bytes:
        pieces, size = self._pieces, len(self._pieces)
        return b"".join([pieces[i] for i in token_ids if i < size])

    def add(self, token_ids: Iterable[int]) -> str:
        """The text that these ids complete; ids beyond the vocabulary have none."""
        text = self._decode(self._bytes(token_ids))
        return self._own(text) if self._prompt_broken else text

    def finish(self) -> str:
        """U+FFFD when the last character stayed incomplete."""
        return self._own(self._decode(b"", final=True))

    def _decode(self, data: bytes, final: bool = False) -> str:
        data = self._held + data
        text, used = codecs.utf_8_decode(data, "replace", final)
        self._held = data[used:]
        return text

    def _own(self, text: str) -> str:
        """Less the U+FFFD that stands for what the prompt left broken."""
        if text and self._prompt_broken:
            self._prompt_broken = False
            return text.removeprefix(REPLACEMENT)
        return text


class WindowDetokenizer:
    """For every other decoder.

    The window is the tokens of the last piece (their text is known: decoders treat a first token differently, so new
    tokens are never decoded alone), at first the end of the prompt, and the tokens behind it that show nothing yet or
    still end within a character. `hidden` ids (special tokens) have no text; they don't enter it.
    """

    def __init__(self, decode: Decoder, prompt_ids: Sequence[int] = (), hidden: frozenset[int] = frozenset()) -> None:
        self._decode = decode
        self._hidden = hidden
        self._context, self._held = self._prompt_window(prompt_ids)
        self._context_text = decode(self._context)
        self._shown = decode(self._context + self._held)  # the prompt's, broken end included

    def _prompt_window(self, prompt_ids: Sequence[int]) -> tuple[list[int], list[int]]:
        """The shortest end of the prompt that has text, and behind it the tokens of a character that it left half.

        It does not begin within a character: decoders show none of the bytes behind one that they can't read.
        """
        size = SHORTEST_CONTEXT
        while size < len(prompt_ids) and not self._decode(self._visible(prompt_ids[-size:])):
            size *= 4
        windows = [self._split(self._visible(prompt_ids[-size - more :])) for more in range(LONGEST_CHARACTER)]
        whole = (window for window in windows if not self._decode(window[0]).startswith(REPLACEMENT))
        return next(whole, windows[0])

    def _visible(self, token_ids: Sequence[int]) -> list[int]:
        return [token_id for token_id in token_ids if token_id not in self._hidden]

    def _split(self, visible: list[int]) -> tuple[list[int], list[int]]:
        """Before and behind the beginning of a character that these tokens leave half."""
        if self._decode(visible).endswith(REPLACEMENT):
            for cut in range(len(visible) - 1, max(0, len(visible) - LONGEST_CHARACTER) - 1, -1):
                if not self._decode(visible[:cut]).endswith(REPLACEMENT):
                    return visible[:cut], visible[cut:]
        return visible, []

    def add(self, token_ids: Iterable[int]) -> str:
        """The text that these ids complete."""
        piece = ""
        for token_id in token_ids:
            if token_id in self._hidden:
                continue
            self._held.append(token_id)
            text = self._decode(self._context + self._held)
            if not text.endswith(REPLACEMENT) and text != self._context_text:
                piece += self._take(len(self._held), text)
            elif len(self._held) > MAX_HELD_TOKENS:
                count = len(self._held) - LONGEST_CHARACTER
                piece += self._take(count, self._decode(self._context + self._held[:count]))
        return piece

    def _take(self, count: int, text: str) -> str:
        """The new part of `text`, that of the context and the first `count` held tokens, which become the context."""
        known = next((known for known in (self._shown, self._context_text) if text.startswith(known)), None)
        new = text[len(known) :] if known is not None else self._decode(self._held[:count])
        self._context = self._held[:count]
        self._held = self._held[count:]
        self._context_text = self._shown = self._decode(self._context)
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


def byte_piece(spelling: str) -> bytes:
    """The bytes of a token of the vocabulary; one with a character outside the alphabet stands for its own UTF-8."""
    try:
        return bytes([_BYTE_OF[character] for character in spelling])
    except KeyError:
        return spelling.encode()


_BYTE_OF = byte_alphabet()
