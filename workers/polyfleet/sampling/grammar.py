"""Grammars: which tokens may follow those that were generated, as llguidance finds it."""

import json
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property, lru_cache
from typing import Any

from polyfleet.sampling.arrays import Int32s
from polyfleet.sampling.masks import allow
from polyfleet.wire.structure import GRAMMAR_LIMITS

MOST_COMPILED = 64  # grammars that are kept


class GrammarError(ValueError):
    """A grammar can't be used, or can't be gone on with. The message is one sentence."""


class Grammars:
    """Compiles grammars for one tokenizer, on a thread of its own: the engine goes on with other sequences.

    `document` is the tokenizer assets' JSON. Nothing is made of it before the first grammar.
    """

    def __init__(self, document: bytes, vocabulary_size: int, end_token_ids: Collection[int]) -> None:
        self._document = document
        self._vocabulary_size = vocabulary_size
        self._end_token_ids = sorted(each for each in end_token_ids if each < vocabulary_size)
        self._thread = ThreadPoolExecutor(1, "grammars")
        self._compiled = lru_cache(MOST_COMPILED)(self._compile)

    def mask(self, grammar: str, stop_token_ids: Collection[int] = ()) -> "GrammarMask":
        """A mask for a new sequence, which `stop_token_ids` end, too; what is wrong with the grammar it says itself."""
        return GrammarMask(self._thread.submit(self._matcher, grammar), stop_token_ids)

    def _matcher(self, grammar: str) -> Any:
        return self._compiled(grammar).deep_copy()

    def _compile(self, grammar: str) -> Any:
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(verbose_errors=False, **GRAMMAR_LIMITS)
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            raise GrammarError(f"the grammar can't be used: {_first(matcher.get_error())}")
        return matcher

    @cached_property
    def _tokenizer(self) -> Any:
        from llguidance import LLTokenizer

        if not self._end_token_ids:
            raise GrammarError("the model has no end token, with which an answer that is complete could end")
        definition = json.dumps(json.loads(self._document)["tokenizer"])
        return LLTokenizer(definition, n_vocab=self._vocabulary_size, eos_token=self._end_token_ids)

    def close(self) -> None:
        """End its thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)


class GrammarMask:
    """The mask of one sequence. What it is asked with goes on from what it was asked with before."""

    def __init__(self, matcher: "Future[Any]", stop_token_ids: Collection[int]) -> None:
        self._future = matcher
        self._stop_token_ids = tuple(stop_token_ids)
        self._taken: list[int] = []

    @property
    def ready(self) -> bool:
        """As TokenMask."""
        return self._future.done()

    def fill(self, generated_ids: Sequence[int], bits: Int32s) -> None:
        """As TokenMask. Raises GrammarError."""
        matcher, taken = self._matcher, self._taken
        kept = self._kept(generated_ids)
        if kept < len(taken):  # drafts that proved wrong
            matcher.rollback(len(taken) - kept)
            del taken[kept:]
        new = generated_ids[kept:]
        if not new or matcher.consume_tokens(new):
            taken += new
            matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        if matcher.is_error():  # in a mask, too: it would leave the end alone, as if the answer were whole
            raise GrammarError(f"the grammar can't be gone on with: {_first(matcher.get_error())}")
        if self._stop_token_ids and matcher.is_accepting():
            allow(bits, self._stop_token_ids)

    @cached_property
    def _matcher(self) -> Any:
        """Compiled; raises what was wrong with the grammar."""
        return self._future.result()

    def _kept(self, generated_ids: Sequence[int]) -> int:
        """How many of the tokens taken are still there: only drafts may have gone, the last of them."""
        kept = min(len(self._taken), len(generated_ids))
        while kept and self._taken[kept - 1] != generated_ids[kept - 1]:
            kept -= 1
        return kept


def _first(problem: str) -> str:
    return problem.strip().splitlines()[0] if problem.strip() else "no reason given"
