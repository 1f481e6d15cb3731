"""Applier: gives sequences what a collected step came to, and tells what is new."""

from collections.abc import Sequence as Items
from typing import Any

from numpy.typing import NDArray

from polyfleet.engine.batching.batch import BatchCounters
from polyfleet.engine.batching.flight import Flight
from polyfleet.engine.batching.holdings import Holdings
from polyfleet.engine.batching.ledger import Ledger
from polyfleet.engine.batching.parts import Part
from polyfleet.engine.executor import StepOutput
from polyfleet.engine.speculation.speculation import Speculator
from polyfleet.engine.step.sequence import Sequence, SequenceState
from polyfleet.wire.answers import INTERNAL, FinishReason, SampledToken, SequenceUpdate


class Applier:
    """Moves sequences on, and out of the batch when they end."""

    def __init__(
        self, ledger: Ledger, holdings: Holdings, counters: BatchCounters, speculator: Speculator | None = None
    ) -> None:
        self._ledger = ledger
        self._holdings = holdings
        self._counters = counters
        self._speculator = speculator

    def apply(self, flight: Flight, output: StepOutput, tokens: list[SampledToken]) -> list[SequenceUpdate]:
        """The news of each sequence that has any."""
        updates: list[SequenceUpdate] = []
        for sequence, place, why, code in flight.failed(output.faults.tolist()):
            if sequence.place is place:
                updates.append(self.fail(sequence, why, code))
        updates += self._apply_decodes(flight, output.token_ids, tokens)
        return updates + self._apply_parts(flight, output, tokens) if flight.parts else updates

    def _apply_decodes(
        self, flight: Flight, token_ids: NDArray[Any], tokens: list[SampledToken]
    ) -> list[SequenceUpdate]:
        """The same of the sequences that decode."""
        decodes, block_size, num_usual = flight.decodes, self._holdings.block_size, 0
        if len(decodes) > 1 and self._ledger.num_moves == decodes.num_moves:  # one alone is as quick without
            full = decodes.take(token_ids[: len(decodes)].tolist(), block_size)
            if full is not None:
                for sequence in full:
                    self._holdings.settled(sequence)
                self._counters.generated_tokens += len(decodes)
                return list(map(SequenceUpdate, decodes.sequence_ids, zip(tokens)))
        updates: list[SequenceUpdate] = []
        for sequence, place, token in zip(decodes, decodes.places, tokens, strict=False):
            if sequence.place is not place:
                self._counters.dropped_rows += place not in flight.doubtful
                continue
            sequence.num_settled = settled = sequence.num_settled + 1
            if not settled % block_size:
                self._holdings.settled(sequence)
            token_id, generated_ids = token.token_id, sequence.generated_ids
            if len(generated_ids) < sequence.last_usual and token_id not in sequence.ends:
                generated_ids.append(token_id)
                num_usual += 1
                updates.append(SequenceUpdate(sequence.sequence_id, (token,)))
            else:
                updates.append(self._news(sequence, token, sequence.accept(token_id)))
        self._counters.generated_tokens += num_usual
        return updates

    def _apply_parts(self, flight: Flight, output: StepOutput, tokens: list[SampledToken]) -> list[SequenceUpdate]:
        """The same of the sequences with prompts."""
        updates: list[SequenceUpdate] = []
        end = len(flight.decodes)  # of the draws so far
        pooled = dict(zip(flight.pooled, output.pooled, strict=True)) if output.pooled is not None else {}
        for index, part in enumerate(flight.parts, len(flight.decodes)):
            drawn, end = tokens[end : end + part.num_draws], end + part.num_draws
            sequence = part.sequence
            if sequence.place is not part.place:
                self._counters.dropped_rows += 0 if part.place in flight.doubtful else part.size
                continue
            if part.drafts:
                updates.append(self._apply_drafts(part, drawn))
                continue
            sequence.num_settled += part.size
            self._holdings.settled(sequence)
            if index in pooled:
                sequence.add_pooled(pooled[index])
            if part.targets:
                sequence.scores += drawn
            elif part.draws:
                (token,) = drawn
                updates.append(self._news(sequence, token, sequence.accept(token.token_id)))
            elif sequence.num_settled == sequence.num_tokens:  # all of an embedding's
                updates.append(self._finish(sequence, FinishReason.STOP, embedding=sequence.embedding()))
        return updates

    def _apply_drafts(self, part: Part, drawn: Items[SampledToken]) -> SequenceUpdate:
        """Take the tokens that verified drafts stand for, and the one behind them, as steps of one token would."""
        sequence, reason = part.sequence, None
        verified = part.verified(drawn)
        self._counters.drafts += len(part.drafts)
        self._counters.accepted_drafts += len(verified) - 1
        taken: list[SampledToken] = []
        for token in verified:
            sequence.num_settled += 1
            self._holdings.settled(sequence)
            reason = sequence.accept(token.token_id)
            if reason is not FinishReason.STOP:
                taken.append(token)
            if reason is not None:
                break
        sequence.roll_back()
        self._counters.generated_tokens += len(taken)
        if reason is not None:
            return self._finish(sequence, reason, tuple(taken))
        self._holdings.shrink(sequence)
        return sequence.news(tuple(taken))

    def _news(self, sequence: Sequence, token: SampledToken, reason: FinishReason | None) -> SequenceUpdate:
        """Of a sequence that has accepted a token."""
        if reason is FinishReason.STOP:
            return self._finish(sequence, reason)
        self._counters.generated_tokens += 1
        return sequence.news((token,)) if reason is None else self._finish(sequence, reason, (token,))

    def _finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        tokens: tuple[SampledToken, ...] = (),
        embedding: tuple[float, ...] = (),
    ) -> SequenceUpdate:
        news = sequence.news(tokens, finish_reason=reason, embedding=embedding)  # of what it forgets when it leaves
        self.leave(sequence, SequenceState.FINISHED)
        return news

    def fail(self, sequence: Sequence, error: str, code: int = INTERNAL) -> SequenceUpdate:
        """End a sequence that this engine, or with another code than INTERNAL any engine, can't compute.

        What its blocks hold is not to be trusted.
        """
        self.leave(sequence, SequenceState.FAILED, doubtful=True)
        return sequence.news(error=error, code=code, broken=code == INTERNAL)

    def preempt(self, sequence: Sequence, *, doubtful: bool = False) -> None:
        """Put a running sequence back to wait; it is computed again."""
        self.leave(sequence, SequenceState.WAITING, doubtful=doubtful)
        self._counters.preemptions += 1

    def leave(self, sequence: Sequence, state: SequenceState, *, doubtful: bool = False) -> None:
        """Take a sequence out of the batch, or out of the queue, with all that it holds."""
        self._holdings.leave(sequence, doubtful=doubtful)
        self._ledger.move(sequence, state)
        if self._speculator is not None and state is not SequenceState.WAITING:
            self._speculator.forget(sequence)
