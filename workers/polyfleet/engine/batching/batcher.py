"""Batcher: keeps steps under way at the Executor and applies what they came to. No tensors here."""

import logging
import time
from collections import deque
from collections.abc import Callable
from itertools import count

from polyfleet.engine.batching.applier import Applier
from polyfleet.engine.batching.batch import BatchCounters, BatchLimits, StepReport
from polyfleet.engine.batching.budget import StepBudget
from polyfleet.engine.batching.checks import check_lengths
from polyfleet.engine.batching.composer import Composer
from polyfleet.engine.batching.flight import Flight
from polyfleet.engine.batching.holdings import Holdings, least_tokens
from polyfleet.engine.batching.ledger import Ledger
from polyfleet.engine.batching.parts import first_line
from polyfleet.engine.executor import Capacity, DeviceTimeout, Executor, Pending, StepOutput, StepTooLarge
from polyfleet.engine.speculation.speculation import Speculator
from polyfleet.engine.step.image_rows import SequenceImages
from polyfleet.engine.step.needs import MASKED, NO_ADAPTER
from polyfleet.engine.step.sequence import Sequence, SequenceState, TokenMask
from polyfleet.kvcache.pool import BlockPool
from polyfleet.kvcache.prefix import PrefixIndex
from polyfleet.wire.answers import SampledToken, SequenceUpdate
from polyfleet.wire.hashing import prefix_root
from polyfleet.wire.limits import FieldError
from polyfleet.wire.requests import SequenceRequest

log = logging.getLogger(__name__)

STEP_TIMEOUT_SECONDS = 300.0  # that a device may take for one step before it counts as hung


class Batcher:
    """Continuous batching over a paged KV cache.

    A step is composed (see Composer), assembled into a plan, launched, drawn and collected. While the executor is
    asynchronous the next step is launched before the last one's tokens are known. A sequence takes blocks for all its
    tokens when it starts, less those it finds in the PrefixIndex, and one more whenever the last is full. When no block
    is left, the sequence last in rank is preempted: it gives all its blocks back and is computed again later. The first
    in rank never is, so there is always progress. Not thread-safe.
    """

    def __init__(
        self,
        executor: Executor,
        capacity: Capacity,
        limits: BatchLimits,
        clock: Callable[[], float] = time.monotonic,
        speculator: Speculator | None = None,
    ) -> None:
        """`speculator`: what drafts tokens, where some are to be."""
        pool_tokens = capacity.num_blocks * capacity.block_size
        if not limits.context_length > 0 or pool_tokens < least_tokens(limits.context_length, limits.horizon, capacity):
            raise ValueError(f"a context of {limits.context_length} tokens does not fit a KV pool of {pool_tokens}")
        local_tokens = capacity.local_blocks * capacity.block_size
        if 0 < local_tokens < least_tokens(limits.context_length, limits.window, capacity):
            raise ValueError(f"a window of {limits.window} tokens does not fit a KV pool of {local_tokens}")
        if not 0 < limits.max_sequences < limits.step_tokens:
            raise ValueError(f"{limits.step_tokens} tokens a step are too few for {limits.max_sequences} sequences")
        self.ledger = Ledger()
        self.counters = BatchCounters()
        self._executor = executor
        self._limits = limits
        self.clock = clock
        self._arrivals = count()
        self._holdings = Holdings(capacity, limits.prefix_cache, limits.horizon, limits.window)
        self._assembler = self._holdings.assembler
        self._budget = StepBudget(limits.step_tokens, limits.step_seconds)
        self._speculator = speculator
        self._applier = Applier(self.ledger, self._holdings, self.counters, speculator)
        self._composer = Composer(
            self.ledger,
            self._holdings,
            self._budget,
            speculator,
            started=self._count_prompt,
            preempt=self._applier.preempt,
            whole=limits.whole,
        )
        self._flights: deque[Flight] = deque()
        self._num_launched = 0
        self._collected_seconds = 0.0

    @property
    def holdings(self) -> Holdings:
        """Slots and blocks of all sequences."""
        return self._holdings

    @property
    def pool(self) -> BlockPool:
        """Who holds which blocks."""
        return self._holdings.pool

    @property
    def prefixes(self) -> PrefixIndex:
        """Which blocks hold which tokens."""
        return self._holdings.prefixes

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return len(self.ledger) > 0 or bool(self._flights)

    @property
    def uncomputed_tokens(self) -> int:
        """Tokens to prefill before every present sequence decodes, prefix hits to come not counted off."""
        return self._composer.uncomputed_tokens

    def add(
        self,
        request: SequenceRequest,
        mask: TokenMask | None = None,
        adapter: int = NO_ADAPTER,
        images: SequenceImages | None = None,
    ) -> Sequence:
        """Queue a sequence for the executor's `adapter`; raises FieldError for an id that is taken, or for no room."""
        if request.sequence_id in self.ledger:
            raise FieldError("sequence_id", "is in use by a sequence that has not ended")
        check_lengths(request, self._limits.context_length)
        root = prefix_root(self._limits.fingerprint, request.cache_salt, request.adapter)
        ends = (self._limits.context_length, self._limits.end_token_ids, self._limits.vocabulary_size)
        sequence = Sequence(request, next(self._arrivals), self.clock(), *ends, root=root, mask=mask, adapter=adapter)
        sequence.images = images
        self.ledger.admit(sequence)
        return sequence

    def cancel(self, sequence_id: str) -> bool:
        """End a sequence now and free its blocks; no update follows. False when there is none of that id.

        Blocks that a step under way still writes are free behind that step.
        """
        sequence = self.ledger.get(sequence_id)
        if sequence is None:
            return False
        self._applier.leave(sequence, SequenceState.CANCELLED)
        return True

    def fail(self, sequence: Sequence, reason: str) -> SequenceUpdate:
        """End a sequence that waits, with an error."""
        return self._applier.fail(sequence, reason)

    def step(self) -> StepReport:
        """Launch what may be under way, then collect the oldest step. A step that fails fails its sequences alone.

        Raises DeviceTimeout where the device hangs; no more can be computed then.
        """
        while len(self._flights) < self._executor.depth and (not self._flights or self._flights[-1].drawn):
            if not self._launch():
                break
        if not self._flights:
            self._composer.rest()
            return StepReport([])
        report = self._collect(self._flights[0])
        if len(self._flights) == 1 and not self._flights[0].drawn:  # its masks waited for the tokens before
            self._draw(self._flights[0])
        return report

    def check(self) -> None:
        """Raise AssertionError unless slots, pool, index, states and ledger agree."""
        self.ledger.check()
        self._holdings.check(self.ledger.running)

    # Launching

    def _launch(self) -> bool:
        """Launch a step; False when there is none to launch now."""
        if self._flights and (self._composer.waits or self._flights[-1].error is not None):
            return False  # what is under way is collected first
        decodes, shares = self._composer.compose(ahead=bool(self._flights))
        if not decodes and not shares:
            return False
        drawn = None if self._flights else decodes.drawn
        plan = self._assembler.assemble(shares, decodes, drawn)
        pooled: list[int] = plan.pooled.tolist() if shares else []
        now = self.clock()
        pending: Pending | None = None
        error: Exception | None = None
        try:
            self._holdings.before_write()
            pending = self._executor.launch(plan)
        except StepTooLarge as large:
            if self._budget.too_large(plan.num_rows):
                return self._launch()
            error = large
        except Exception as failure:
            error = failure
        else:
            self._assembler.accepted()
        self._num_launched += 1
        flight = Flight(self._num_launched, decodes, shares, pooled, now, pending, error, masked=MASKED[plan.needs])
        if not self._flights or error is not None or not flight.waits:
            self._draw(flight)
        self._flights.append(flight)
        return True

    def _draw(self, flight: Flight) -> None:
        flight.drawn = True
        if flight.pending is None:
            return
        try:
            self._executor.draw(flight.pending, flight.masks(self._limits.vocabulary_size) if flight.masked else None)
        except Exception as error:
            flight.error = error

    def _count_prompt(self, sequence: Sequence) -> None:
        """A sequence runs for the first time, or again."""
        if sequence.queue_seconds is not None:
            return
        sequence.queue_seconds = self.clock() - sequence.arrival_seconds
        num_prompt = len(sequence.request.prompt_ids)
        sequence.cached_tokens = min(sequence.num_computed, num_prompt)
        self.counters.prompt_tokens += num_prompt
        if self._limits.prefix_cache and sequence.reads_prefix:
            self.counters.prefix_queries_tokens += num_prompt
            self.counters.prefix_hit_tokens += sequence.cached_tokens

    # Applying

    def _collect(self, flight: Flight) -> StepReport:
        """Wait for a step and apply what it came to."""
        output: StepOutput | None = None
        tokens: list[SampledToken] = []
        if flight.error is None and flight.pending is not None:
            try:
                output = self._executor.collect(flight.pending, STEP_TIMEOUT_SECONDS)
                tokens = flight.tokens(output, self._limits.vocabulary_size)
            except DeviceTimeout:
                raise  # further steps would wait as long, and end sequences that another engine can go on with
            except Exception as error:
                flight.error = error
        self._flights.popleft()
        now = self.clock()
        seconds = now - max(self._collected_seconds, flight.launched_seconds)
        self._collected_seconds = now
        if flight.error is not None or output is None:
            report = StepReport(self._fail_step(flight))
        else:
            decodes, prompt_rows, drafts = flight.rows if flight.parts else (len(flight.decodes), 0, 0)
            self._budget.observe(decodes + drafts, prompt_rows, seconds)
            if self._speculator is not None:
                self._speculator.observe(decodes, prompt_rows, drafts, seconds)
            accepted = self.counters.accepted_drafts
            updates = self._applier.apply(flight, output, tokens)
            accepted = self.counters.accepted_drafts - accepted
            report = StepReport(updates, decodes, prompt_rows, drafts, accepted, seconds)
            flight.decodes.drawn = output.token_ids
        self._holdings.collected(flight.number, flight.doubtful)
        return report

    def _fail_step(self, flight: Flight) -> list[SequenceUpdate]:
        """End the step's sequences, or have them computed again in smaller steps where only memory was short."""
        error, num_rows = flight.error, sum(flight.rows)
        alive = [sequence for sequence, place in flight.members if sequence.place is place]
        flight.doubtful = tuple(place for _, place in flight.members)
        self.counters.memory_shortages += isinstance(error, MemoryError)
        if isinstance(error, MemoryError) and self._budget.too_large(num_rows):
            log.warning("the device has no memory for a step of %d rows: smaller ones are tried", num_rows)
            for sequence in alive:
                self._applier.preempt(sequence, doubtful=True)
            return []
        log.error("a step of %d sequences failed", len(flight.members), exc_info=error)
        reason = f"the engine could not compute a step: {first_line(error)}"
        return [self._applier.fail(sequence, reason) for sequence in alive]
