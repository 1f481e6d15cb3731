"""Engine: one model on one device, stepped by its owner. A plain Python script can drive it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from polyfleet.engine.batch import Executor
from polyfleet.engine.batcher import Batcher, BatchLimits
from polyfleet.engine.canary import CANARY_ID, Canary
from polyfleet.engine.checks import check_request
from polyfleet.engine.rates import Rates
from polyfleet.engine.request import EngineFacts, EngineOptions, EngineStatus, SequenceRequest, SequenceUpdate
from polyfleet.models.config import ModelConfig

if TYPE_CHECKING:
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
        tokenizer: "TokenizerAssets | None" = None,
        clock: Callable[[], float] = time.monotonic,
        canary: Canary | None = None,
        fingerprint: str = "",
    ) -> None:
        """`options` have nothing left open (see `polyfleet.engine.sizing`). `load` is the usual way here."""
        self.facts = EngineFacts(
            name=config.name,
            architecture=config.architecture,
            context_length=options.context_length,
            vocabulary_size=config.vocabulary_size,
            hidden_size=config.hidden_size,
            block_size=executor.block_size,
            num_blocks=executor.num_blocks,
            max_sequences=options.max_sequences,
            dtype=options.dtype,
            end_token_ids=config.end_token_ids,
            fingerprint=fingerprint,
        )
        self.options = options
        self.tokenizer = tokenizer
        self.canary = canary
        limits = BatchLimits(
            max_sequences=options.max_sequences,
            step_tokens=options.step_tokens,
            context_length=options.context_length,
            end_token_ids=frozenset(config.end_token_ids),
            prefix_cache=options.prefix_cache,
            fingerprint=fingerprint,
        )
        self._executor = executor
        self._batcher = Batcher(executor, limits, clock)
        self._clock = clock
        self._rates = Rates()
        self._steps = 0
        self._step_seconds = 0.0

    @classmethod
    def load(cls, path: str, options: EngineOptions | None = None, progress: Progress | None = None) -> "Engine":
        """Load a GGUF file or a Hugging Face folder; nothing in it is ever executed.

        Raises ModelFileError (the file), BackendUnavailable (the device) or ValueError (an option); the message of
        each is one sentence.
        """
        from polyfleet.engine.loader import load

        loaded = load(path, options or EngineOptions(), progress or (lambda share, phase: None))
        return cls(
            loaded.executor,
            loaded.model.config,
            loaded.options,
            loaded.model.tokenizer,
            canary=loaded.canary,
            fingerprint=loaded.fingerprint,
        )

    @property
    def has_work(self) -> bool:
        """Whether a step would compute something."""
        return len(self._batcher.ledger) > 0

    def implementations(self) -> Mapping[str, str]:
        """Which implementation runs each op."""
        return self._executor.implementations()

    def add(self, request: SequenceRequest) -> None:
        """Queue a sequence. Raises FieldError, and takes nothing, when a field is out of range."""
        check_request(request, self.facts.vocabulary_size)
        self._batcher.add(request)

    def cancel(self, sequence_id: str) -> bool:
        """End a sequence and free its blocks at once; no update follows. False when it has ended or never was."""
        return self._batcher.cancel(sequence_id)

    def step(self) -> list[SequenceUpdate]:
        """Compute one step; returns the news of each sequence that has any.

        An error inside the step ends the sequences that took part in it, each with an update that says why.
        """
        if not self.has_work:
            return []
        canary_alone = len(self._batcher.ledger) == 1 and CANARY_ID in self._batcher.ledger
        started = self._clock()
        report = self._batcher.step()
        seconds = self._clock() - started
        self._steps += 1
        self._step_seconds += seconds
        if not canary_alone:  # its few tokens say nothing of the speed that requests see
            self._rates.add_step(report.num_decodes, report.num_prefill_tokens, seconds)
        return report.updates

    def status(self) -> EngineStatus:
        """How the engine is doing."""
        batcher = self._batcher
        ledger = batcher.ledger
        return EngineStatus(
            running_sequences=len(ledger.running),
            waiting_sequences=len(ledger.waiting),
            waiting_prefill_tokens=batcher.uncomputed_tokens,
            free_blocks=batcher.pool.num_free,
            prefill_tokens_per_second=self._rates.prefill.per_second,
            decode_tokens_per_second=self._rates.decode.per_second,
            steps=self._steps,
            step_seconds=self._step_seconds,
            admitted=ledger.admitted,
            finished=ledger.finished,
            failed=ledger.failed,
            cancelled=ledger.cancelled,
            **asdict(batcher.counters),
        )

    def check(self) -> None:
        """Raise AssertionError unless pool, prefix index and ledger balance. Cheap enough for an idle engine."""
        self._batcher.check()
