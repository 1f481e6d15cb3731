"""Batcher: composes each step from the sequences it holds and applies what the Executor made of it. No tensors here."""

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count

from polyfleet.engine.batch import Executor, PoolingKind, SequenceSlice, SliceResult, StepBatch
from polyfleet.engine.ledger import Ledger
from polyfleet.engine.request import FinishReason, SequenceRequest, SequenceUpdate
from polyfleet.engine.sequence import Sequence, SequenceState
from polyfleet.kvcache.pool import BlockPool
from polyfleet.kvcache.prefix import PrefixIndex
from polyfleet.sampling.draw import SampledToken
from polyfleet.wire.hashing import ROOT_HASH, prefix_root
from polyfleet.wire.limits import FieldError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What a step and a sequence may take."""

    max_sequences: int  # running at once
    step_tokens: int  # rows of one forward pass; more than max_sequences, so that decodes never starve a prefill
    context_length: int  # tokens of one sequence; at most what the whole pool holds
    end_token_ids: frozenset[int] = frozenset()
    prefix_cache: bool = True
    fingerprint: str = ""  # of the model, part of every prefix's identity


@dataclass(slots=True)
class BatchCounters:
    """Totals since the start, in tokens, and how often a sequence was preempted."""

    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_queries_tokens: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step brought. Without rows (nothing to do, or the executor failed) it teaches nothing about speed."""

    updates: list[SequenceUpdate]
    num_decodes: int = 0
    num_prefill_tokens: int = 0


class Batcher:
    """Continuous batching over a paged KV cache.

    Each step: one token for every sequence that decodes, then chunks of prompts up to the token budget, by priority
    and then arrival. A sequence takes blocks for all its tokens when it starts, less those it finds in the
    PrefixIndex, and one more whenever the last is full. When no block is left, the sequence last in rank is preempted:
    it gives all its blocks back and is computed again later. The first in rank never is, so there is always progress.
    Not thread-safe.
    """

    def __init__(self, executor: Executor, limits: BatchLimits, clock: Callable[[], float] = time.monotonic) -> None:
        capacity = executor.num_blocks * executor.block_size
        if not 0 < limits.context_length <= capacity:
            raise ValueError(f"a context of {limits.context_length} tokens does not fit a KV pool of {capacity}")
        if not 0 < limits.max_sequences < limits.step_tokens:
            raise ValueError(f"{limits.step_tokens} tokens a step are too few for {limits.max_sequences} sequences")
        self.pool = BlockPool(executor.num_blocks)
        self.prefixes = PrefixIndex(self.pool)
        self.ledger = Ledger()
        self.counters = BatchCounters()
        self._executor = executor
        self._limits = limits
        self._clock = clock
        self._arrivals = count()

    @property
    def uncomputed_tokens(self) -> int:
        """Tokens to prefill before every present sequence decodes, prefix hits to come not counted off."""
        prefilling = sum(each.num_uncomputed for each in self.ledger.running if each.num_uncomputed > 1)
        return prefilling + sum(each.num_uncomputed for each in self.ledger.waiting)

    def add(self, request: SequenceRequest) -> None:
        """Queue a sequence. Raises FieldError when its id is taken or its tokens leave no room in the context."""
        if request.sequence_id in self.ledger:
            raise FieldError("sequence_id", "is in use by a sequence that has not ended")
        num_tokens = len(request.prompt_ids) + len(request.generated_ids)
        longest = self._limits.context_length - (request.pooling is None)
        if not 0 < num_tokens <= longest:
            raise FieldError("prompt_ids", f"must be 1 to {longest} tokens with those generated, not {num_tokens}")
        root = prefix_root(self._limits.fingerprint, request.cache_salt)
        self.ledger.admit(Sequence(request, next(self._arrivals), self._clock(), root=root))

    def cancel(self, sequence_id: str) -> bool:
        """End a sequence now and free its blocks; no update follows. False when there is none of that id."""
        sequence = self.ledger.get(sequence_id)
        if sequence is None:
            return False
        self._leave(sequence, SequenceState.CANCELLED)
        return True

    def step(self) -> StepReport:
        """Compute one step. An executor that raises fails the sequences of this step and no others."""
        shares, num_decodes = self._plan()
        if not shares:
            return StepReport([])
        now = self._clock()
        for sequence, _ in shares:
            if sequence.queue_seconds is None:
                sequence.queue_seconds = now - sequence.arrival_seconds
        num_prefill_tokens = sum(size for _, size in shares) - num_decodes
        batch = StepBatch(tuple(self._slice(sequence, size) for sequence, size in shares))
        try:
            results = self._execute(batch)
        except Exception as error:
            log.exception("a step of %d sequences failed", len(shares))
            failed = SliceResult(error=f"the engine could not compute a step: {_first_line(error)}")
            results, num_decodes, num_prefill_tokens = (failed,) * len(shares), 0, 0
        news = (self._advance(*share, result) for share, result in zip(shares, results, strict=True))
        return StepReport([update for update in news if update is not None], num_decodes, num_prefill_tokens)

    def check(self) -> None:
        """Raise AssertionError unless pool, index, states and ledger agree."""
        self.pool.check()
        self.prefixes.check()
        self.ledger.check()
        holders = Counter(block for each in self.ledger.running for block in each.blocks)
        for block in range(self.pool.num_blocks):
            assert self.pool.references(block) == holders[block], f"block {block} is held by nobody or not counted"

    # Composing a step

    def _plan(self) -> tuple[list[tuple[Sequence, int]], int]:
        """Who takes part in this step and with how many tokens, single tokens first; and how many of them decode."""
        admitting = not self._grow()  # whoever was preempted just now would only be preempted again
        decodes: list[Sequence] = []
        prefills: list[Sequence] = []
        for each in self.ledger.running:
            (decodes if each.num_uncomputed == 1 else prefills).append(each)
        newcomers = self.ledger.waiting[: self._limits.max_sequences - len(self.ledger.running)]
        shares = [(each, 1) for each in decodes]
        budget = self._limits.step_tokens - len(decodes)
        for each in sorted((*prefills, *newcomers), key=lambda each: each.rank):
            if not budget:
                break
            if each.state is SequenceState.WAITING:
                admitting = admitting and self._admit(each)
                if not admitting:
                    continue
            size = min(budget, each.num_uncomputed)
            budget -= size
            shares.append((each, size))
        return sorted(shares, key=lambda share: share[1] > 1), len(decodes)

    def _grow(self) -> bool:
        """Find a block for every running sequence whose last one is full; True when that meant preempting."""
        preempted = False
        for each in tuple(self.ledger.running):
            while (
                each.state is SequenceState.RUNNING and each.num_tokens > len(each.blocks) * self._executor.block_size
            ):
                blocks = self.pool.allocate(1)
                if blocks is None:
                    self._preempt(self.ledger.running[-1])
                    preempted = True
                else:
                    each.blocks += blocks
        return preempted

    def _preempt(self, sequence: Sequence) -> None:
        self._leave(sequence, SequenceState.WAITING)
        self.counters.preemptions += 1

    def _admit(self, sequence: Sequence) -> bool:
        """Start a waiting sequence if the pool has blocks for its tokens and one for each running one that grows."""
        block_size = self._executor.block_size
        hits = self._find_prefix(sequence)
        needed = -(-sequence.num_tokens // block_size) - len(hits)
        revived = sum(not self.pool.references(block) for block in hits)
        growing = sum(self._grows(each) for each in self.ledger.running)
        if needed + revived + growing > self.pool.num_free:
            return False
        for block in hits:
            self.pool.share(block)
        sequence.blocks = hits + (self.pool.allocate(needed) or [])
        sequence.num_computed = len(hits) * block_size
        sequence.num_published = len(hits)
        self.ledger.move(sequence, SequenceState.RUNNING)
        if sequence.queue_seconds is None:
            self._count_prompt(sequence)
        return True

    def _grows(self, sequence: Sequence) -> bool:
        """Whether a running sequence will want more blocks than it has: never where a block holds a whole context."""
        request = sequence.request
        longest = min(len(request.prompt_ids) + request.max_tokens, self._limits.context_length)
        return longest > len(sequence.blocks) * self._executor.block_size

    def _find_prefix(self, sequence: Sequence) -> list[int]:
        """Computed blocks of its beginning; at least one token is left to compute, for something must be drawn."""
        if not self._limits.prefix_cache or not sequence.reads_prefix:
            return []
        block_size = self._executor.block_size
        return self.prefixes.find(sequence.chain((sequence.num_tokens - 1) // block_size, block_size))

    def _count_prompt(self, sequence: Sequence) -> None:
        num_prompt = len(sequence.request.prompt_ids)
        sequence.cached_tokens = min(sequence.num_computed, num_prompt)
        self.counters.prompt_tokens += num_prompt
        if self._limits.prefix_cache and sequence.reads_prefix:
            self.counters.prefix_queries_tokens += num_prompt
            self.counters.prefix_hit_tokens += sequence.cached_tokens

    def _slice(self, sequence: Sequence, size: int) -> SequenceSlice:
        request, start = sequence.request, sequence.num_computed
        last = size == sequence.num_uncomputed
        draw, pooling = None, None
        if request.pooling is None and last:
            draw = sequence.draw()
        if request.pooling is PoolingKind.MEAN or last:
            pooling = request.pooling
        return SequenceSlice(sequence.tokens(start, start + size), start, sequence.blocks, draw, pooling)

    # Applying a step

    def _execute(self, batch: StepBatch) -> tuple[SliceResult, ...]:
        results = self._executor.step(batch)
        if len(results) != len(batch.slices):
            raise RuntimeError(f"the executor returned {len(results)} results for {len(batch.slices)} slices")
        return results

    def _advance(self, sequence: Sequence, size: int, result: SliceResult) -> SequenceUpdate | None:
        """Apply one slice's result; None when there is nothing to tell."""
        if result.error:
            return self._fail(sequence, result.error)
        sequence.num_computed += size
        if result.token is not None or result.pooled:  # else nobody has looked yet whether the numbers are finite
            self._publish(sequence)
        if result.pooled:
            sequence.add_pooled(result.pooled)
        if sequence.num_uncomputed:
            return None
        if sequence.request.pooling is not None:
            return self._finish(sequence, FinishReason.STOP, embedding=sequence.embedding())
        if result.token is None:
            return self._fail(sequence, "the executor drew no token")
        num_before = len(sequence.generated_ids)
        reason = sequence.accept(result.token, self._limits.context_length, self._limits.end_token_ids)
        tokens = (result.token,) if len(sequence.generated_ids) > num_before else ()
        self.counters.generated_tokens += len(tokens)
        if reason is not None:
            return self._finish(sequence, reason, tokens=tokens)
        return sequence.news(tokens)

    def _publish(self, sequence: Sequence) -> None:
        """Offer the blocks that were filled since the last time to the PrefixIndex."""
        block_size = self._executor.block_size
        num_full = sequence.num_computed // block_size
        if not self._limits.prefix_cache or num_full == sequence.num_published:
            return
        hashes = sequence.chain(num_full, block_size)
        for index in range(sequence.num_published, num_full):
            parent = hashes[index - 1] if index else ROOT_HASH
            sequence.blocks[index] = self.prefixes.publish(hashes[index], parent, sequence.blocks[index])
        sequence.num_published = num_full

    def _finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        tokens: tuple[SampledToken, ...] = (),
        embedding: tuple[float, ...] = (),
    ) -> SequenceUpdate:
        self._leave(sequence, SequenceState.FINISHED)
        return replace(sequence.news(tokens), finish_reason=reason, embedding=embedding)

    def _fail(self, sequence: Sequence, error: str) -> SequenceUpdate:
        self._leave(sequence, SequenceState.FAILED)
        return replace(sequence.news(), error=error)

    def _leave(self, sequence: Sequence, state: SequenceState) -> None:
        """Take a sequence out of the batch, or out of the queue, with all its blocks."""
        self.pool.release(sequence.blocks)
        sequence.forget_computed()
        self.ledger.move(sequence, state)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
