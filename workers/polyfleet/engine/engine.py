"""Engine: one model on one device, stepped by its owner. A plain Python script can drive it."""

import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Tokens
from typing import TYPE_CHECKING

from polyfleet.engine.adapters import Adapters
from polyfleet.engine.batching.batcher import Batcher
from polyfleet.engine.batching.checks import check_request, in_segments
from polyfleet.engine.canary.canary import CANARY_ID, CanarySource
from polyfleet.engine.choosing.sizing import capacity_of, window_of
from polyfleet.engine.executor import Executor
from polyfleet.engine.facts import EngineStatus, LoadedAdapter
from polyfleet.engine.images.images import ImageEncoder
from polyfleet.engine.images.vision import VisionTower
from polyfleet.engine.served import facts_of, limits_of
from polyfleet.engine.speculation.draft_model import DraftModel
from polyfleet.engine.speculation.speculation import shown, speculator_of
from polyfleet.engine.step.image_rows import SequenceImages
from polyfleet.engine.step.plan import NO_ADAPTER
from polyfleet.engine.step.sequence import Sequence, TokenMask
from polyfleet.engine.travel.exchange import Exchange
from polyfleet.engine.travel.giving import Giving
from polyfleet.engine.travel.shelf import NOTHING, shelf_of
from polyfleet.engine.travel.travel import Travel
from polyfleet.kvcache.portable import Buffer
from polyfleet.kvcache.travelling import PrefixRoom
from polyfleet.models.config import ModelConfig
from polyfleet.sampling.grammar import Grammars
from polyfleet.wire.answers import SequenceUpdate
from polyfleet.wire.limits import FieldError
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.rates import Rates
from polyfleet.wire.requests import SequenceRequest

if TYPE_CHECKING:
    from polyfleet.engine.loader import EngineParts
    from polyfleet.loading.model import TokenizerAssets

Progress = Callable[[float, str], None]  # share done from 0 to 1, and what is being done, for people


class Engine:
    """Computes sequences: `add` them, `step` while `has_work`, read the updates. Not thread-safe.

    engine = Engine.load("model.gguf")
    engine.add(SequenceRequest("one", prompt_ids=(1, 2, 3), max_tokens=50))
    while engine.has_work:
        for update in engine.step():
            print(update.tokens, update.finish_reason)
    """

    def __init__(
        self,
        executor: Executor,
        config: ModelConfig,
        options: EngineOptions,
        *,
        tokenizer: "TokenizerAssets | None" = None,
        clock: Callable[[], float] = time.monotonic,
        canary: CanarySource | None = None,
        fingerprint: str = "",
        passed_over: tuple[str, ...] = (),
        no_drafts: str = "",
        draft_model: DraftModel | None = None,
        adaptable: tuple[str, ...] = (),
        tower: VisionTower | None = None,
    ) -> None:
        """`options` have nothing left open (see `polyfleet.engine.choosing.sizing`), and `executor` has room for them.

        Weights that are `adaptable` may get adapters. `no_drafts`: why there are none, whatever the options say.
        `draft_model` and `tower` are closed with the engine. `load` is the usual way here."""
        capacity = capacity_of(options, window_of(executor, config))
        speculator = None if no_drafts else speculator_of(options, executor, draft_model)
        speculation = f"off: {no_drafts}" if no_drafts else shown(options)
        stated = config, options, capacity, executor, fingerprint
        self.facts = facts_of(*stated, passed_over=passed_over, speculation=speculation, sees=tower is not None)
        self.options, self.tokenizer, self.canary = options, tokenizer, canary
        self._executor, self._draft_model = executor, draft_model
        self._encoder = ImageEncoder(tower) if tower is not None else None
        self._batcher = Batcher(executor, capacity, limits_of(options, config, fingerprint), clock, speculator)
        self._pool = self._batcher.pool
        self._exchange = Exchange(self._batcher.holdings, executor, fingerprint)
        rates = self._rates = Rates()
        self._shelf = shelf_of(self._batcher.holdings, self._exchange, options, lambda: rates.prefill.per_second)
        self._travel: Travel | None = None
        self._adapters = Adapters(executor, config, options, adaptable)
        self._second_segment = config.vocabulary_size if config.segments > 1 else 0
        ends = config.end_token_ids
        self._grammars = Grammars(tokenizer.document, config.vocabulary_size, ends) if tokenizer else None
        self._steps, self._step_rows, self._step_seconds = 0, 0, 0.0

    @classmethod
    def load(cls, path: str, options: EngineOptions | None = None, progress: Progress | None = None) -> "Engine":
        """Load a GGUF file or a Hugging Face folder; nothing in it is ever executed.

        Raises ModelFileError (the file), BackendUnavailable (the device) or ValueError (an option); the message of
        each is one sentence.
        """
        from polyfleet.engine.loader import load

        return cls.of(load(path, options or EngineOptions(), progress or (lambda share, phase: None)))

    @classmethod
    def of(cls, parts: "EngineParts") -> "Engine":
        """What `polyfleet.engine.loader` has prepared."""
        return cls(
            parts.executor,
            parts.model.config,
            parts.options,
            tokenizer=parts.model.tokenizer,
            canary=parts.canary,
            fingerprint=parts.fingerprint,
            passed_over=parts.passed_over,
            no_drafts=parts.no_drafts,
            draft_model=parts.draft_model,
            adaptable=parts.adaptable,
            tower=parts.tower,
        )

    @property
    def has_work(self) -> bool:
        """Whether a step would compute something."""
        return self._batcher.has_work or any(each is not None and each.has_work for each in (self._travel, self._shelf))

    def attend(self, room: PrefixRoom) -> None:
        """From now on give prefixes to the peers that ask there, and fetch those of theirs that requests name."""
        rate, clock = (lambda: self._rates.prefill.per_second), self._batcher.clock
        giving = Giving(self._exchange, room, self._admit, self.cancel, clock)
        self._travel = Travel(self._exchange, room, giving, self.facts.block_size, rate, clock)

    @property
    def alarm(self) -> int | None:
        """A descriptor that can be read from once the executor has broken down, which `woken` then raises; or none."""
        return getattr(self._executor, "alarm", None)

    def implementations(self) -> Mapping[str, str]:
        """Which implementation runs each op."""
        return self._executor.implementations()

    def add(self, request: SequenceRequest, mask: TokenMask | None = None) -> None:
        """Queue a sequence; `mask` says before each draw which tokens may follow, else its grammar does.

        Raises FieldError, and takes nothing, when a field is out of range.
        """
        sequence = self._admit(request, mask)
        if self._shelf is not None:
            self._shelf.begin(sequence)
        if self._travel is not None and request.prefix_source is not None and not sequence.arriving:
            self._travel.begin(sequence, request.prefix_source)

    def _admit(self, request: SequenceRequest, mask: TokenMask | None = None) -> Sequence:
        check_request(request, self.facts.vocabulary_size)
        if request.pooling is None and self.facts.embeds_only:
            raise FieldError("pooling", f"must be set: {self.facts.name} makes embeddings and draws no tokens")
        adapter = self._adapters.number(request.adapter) if request.adapter else NO_ADAPTER
        if request.grammar and mask is None:
            if self._grammars is None:
                raise FieldError("grammar", "needs a tokenizer, which this model has not")
            mask = self._grammars.mask(request.grammar, request.stop_token_ids)
        images = self._images_of(request) if request.images else None
        return self._batcher.add(in_segments(request, self._second_segment), mask, adapter, images)

    def _images_of(self, request: SequenceRequest) -> SequenceImages:
        if self._encoder is None:
            raise FieldError("images", f"must be empty: {self.facts.name} sees none here")
        return self._encoder.images_of(request)

    def add_adapter(self, path: str) -> LoadedAdapter:
        """Load a PEFT folder, so that requests may name its fingerprint; see docs/adapters.md.

        Raises ValueError, one sentence, for one that can't be taken.
        """
        adapter = self._adapters.load(path, self._present)
        return LoadedAdapter(adapter.fingerprint, adapter.rank)

    def drop_adapter(self, fingerprint: str) -> bool:
        """No new request finds it; its place is free once the sequences that have it have ended. False: unknown."""
        return self._adapters.drop(fingerprint, self._present)

    @property
    def _present(self) -> list[Sequence]:
        return [*self._batcher.ledger.running, *self._batcher.ledger.waiting]

    def cancel(self, sequence_id: str) -> bool:
        """End a sequence; no update follows. False when it has ended or never was.

        Its blocks are free at once, but those that a step under way writes.
        """
        return self._batcher.cancel(sequence_id)

    def step(self) -> list[SequenceUpdate]:
        """Compute one step, or the next of those under way; returns the news of each sequence that has any.

        An error inside the step ends the sequences that took part in it, each with an update that says why. Raises
        DeviceTimeout where the device hangs: the engine is of no use any more, its sequences can go on in another.
        """
        for each in (self._travel, self._shelf):
            if each is not None:
                each.advance()
        present, waiting = self._batcher.ledger.sequences, self._batcher.ledger.waiting
        canary_alone = len(present) == 1 and CANARY_ID in present
        failed = self._encoder.advance_first(waiting) if self._encoder is not None else None
        unseen = [self._batcher.fail(*failed)] if failed is not None else []
        updates, num_decodes, num_prefill_tokens, num_drafts, num_accepted, seconds = self._batcher.step()
        if num_rows := num_decodes + num_prefill_tokens + num_drafts:
            self._steps += 1
            self._step_seconds += seconds
            self._step_rows += num_rows
            if not canary_alone:  # its few tokens say nothing of the speed that requests see
                if num_accepted and not num_prefill_tokens:  # as if each token had had its part of it
                    seconds *= num_decodes / (num_decodes + num_accepted)
                self._rates.add_step(num_decodes, num_prefill_tokens, seconds, self._held_tokens)
        if self._travel is not None:
            updates = self._travel.giving.kept(updates)
        return updates + unseen if unseen else updates

    def export_prefix(self, prompt_ids: Tokens[int], cache_salt: bytes = b"") -> bytes:
        """The longest cached beginning of a prompt as a portable document (docs/kv-layout.md); nothing is drained."""
        return self._exchange.export_prefix(prompt_ids, cache_salt)

    def import_prefix(self, data: Buffer, cache_salt: bytes = b"") -> int:
        """Cache what another engine of this model exported; returns how many tokens of it are cached then.

        Raises ValueError, one sentence, for a document that can't be taken; what the executor raises leaves nothing.
        """
        return self._exchange.import_prefix(data, cache_salt)

    def close(self) -> None:
        """Free the device's memory at once; the engine is of no use afterwards."""
        for each in (self._grammars, self._draft_model, self._encoder, self._shelf, self.canary, self._exchange):
            if each is not None:
                each.close()
        self._executor.close()

    def status(self) -> EngineStatus:
        """How the engine is doing."""
        batcher, rates, pool = self._batcher, self._rates, self._pool
        ledger, counters = batcher.ledger, batcher.counters
        return tuple.__new__(  # in the order of its fields: by their names it takes three times as long
            EngineStatus,
            (
                len(ledger.running),
                len(ledger.waiting),
                max(0, batcher.uncomputed_tokens - (self._travel.arriving_tokens if self._travel else 0)),
                pool.num_free,
                rates.prefill.per_second,
                rates.decode.per_second,
                self._steps,
                self._step_seconds,
                counters.prompt_tokens,
                counters.generated_tokens,
                counters.prefix_queries_tokens,
                counters.prefix_hit_tokens,
                counters.preemptions,
                ledger.admitted,
                ledger.finished,
                ledger.failed,
                ledger.cancelled,
                self._step_rows,
                counters.dropped_rows,
                pool.evictions,
                counters.drafts,
                counters.accepted_drafts,
                counters.memory_shortages,
                *rates.decode_step.seconds,
                *(self._shelf.counts if self._shelf is not None else NOTHING),
                *(self._travel.counts if self._travel is not None else ()),
            ),
        )

    def _held_tokens(self) -> int:
        """Room for tokens in the KV blocks that sequences use."""
        return (self._pool.num_blocks - self._pool.num_free) * self.facts.block_size

    def woken(self) -> None:
        """See peers' news without a step; raises DeviceTimeout where the executor has broken down meanwhile."""
        if self._travel is not None:
            self._travel.woken()
        if self.alarm is not None:
            self._executor.check()  # type: ignore[attr-defined]

    def check(self) -> None:
        """Raise AssertionError unless pool, prefix index and ledger balance. It looks at every block."""
        self._batcher.check()
