"""Texts so short that an event loop may encode them itself: none of them, however hostile, holds it up."""

import logging
import random
import re
import time

from polyfleet.text.prompt_text import PromptText

HOLD_SECONDS = 0.001  # that an event loop can spare for a text
SIZES = (1024, 512, 256)  # bytes of the longest one: the first of these within HOLD_SECONDS
TRIES = 3  # of each hostile text: the least time counts, since others want the processor too
OUTLIER = 10  # times HOLD_SECONDS: a text that takes so long is the last one
# What hostile texts are drawn of: runs that patterns go back over, words that no cache has seen, characters that become
# many when they are normalised, or none.
HOSTILE = (
    *(" ", "\n", " \n\t", "a", "A", "0", "!", "'", "\0", "a ", "a!", "aA", "a0", "'s ", "<|>", "\u2581", "\u2581a"),
    *("abcdefghijklmnopqrstuvwxyz", "etaoin shrdlu ", "0123456789", "!?.,;:-()[]{}'\""),
    *("\u00e9\u00fc\u00df", "e\u0301\u0316", "\u0301\u0316\u0345", "\ufdfa", "\u1e9b\u0323", "\uac00\u1100\u1161"),
    *("\u6f22\u5b57\u4eee\u540d", "\U0001f600\U0001f469\u200d\ufe0f"),
)
GROUP_REPEATED = re.compile(r"\)\s*[*+{]")  # a pattern with such a group may take exponentially long over a text
log = logging.getLogger(__name__)


class ShortTexts:
    """The texts of one model, as PromptText encodes them. Used in one thread; raises TextAssetsError as PromptText.

    Making it takes a while: it encodes hostile texts to find out how long those may be that it takes.
    """

    def __init__(self, document: bytes) -> None:
        self._text = PromptText(document)
        self.max_bytes = self._safe_bytes()

    def _safe_bytes(self) -> int:
        if any(map(GROUP_REPEATED.search, self._text.patterns)):
            return 0
        return next((size for size in SIZES if self._worst_seconds(size) <= HOLD_SECONDS), 0)

    def _worst_seconds(self, size: int) -> float:
        return max(min(self._seconds(hostile(signs, size)) for _ in range(TRIES)) for signs in HOSTILE)

    def _seconds(self, text: str) -> float:
        before = time.thread_time()
        self._text.encode(text)
        return time.thread_time() - before

    def takes(self, text: str) -> bool:
        """Whether it is short enough, and Unicode text at all."""
        if len(text) > self.max_bytes:
            return False
        try:
            return text.isascii() or len(text.encode()) <= self.max_bytes
        except UnicodeEncodeError:
            return False

    def encode(self, text: str, add_special_tokens: bool = True, max_tokens: int = 0) -> list[int]:
        """See PromptText; of a text that it takes."""
        before, most = time.perf_counter(), OUTLIER * HOLD_SECONDS
        ids = self._text.encode(text, add_special_tokens, max_tokens)
        if time.perf_counter() - before > most and self._seconds(text) > most:  # not the machine alone was busy
            log.warning("A short text took long to encode: no more are encoded in the gateway itself.")
            self.max_bytes = 0
        return ids


def hostile(signs: str, size: int) -> str:
    """At most so many bytes of some of these characters, others each time."""
    text = "".join(random.choices(signs, k=size))
    return text.encode()[:size].decode(errors="ignore")
