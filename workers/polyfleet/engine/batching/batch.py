"""What the Batcher is told, and what it tells: plain data."""

from dataclasses import dataclass
from typing import NamedTuple

from polyfleet.wire.answers import SequenceUpdate


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What a step and a sequence may take."""

    max_sequences: int  # running at once
    step_tokens: int  # rows of one forward pass; more than max_sequences, so that decodes never starve a prefill
    context_length: int  # tokens of one sequence; at most what the whole pool holds
    end_token_ids: frozenset[int] = frozenset()
    prefix_cache: bool = True
    horizon: int = 0  # positions that a row sees, its own included: blocks of those before are given back; 0: all
    window: int = 0  # the same of caches that have a pool of their own
    fingerprint: str = ""  # of the model, part of every prefix's identity
    step_seconds: float = 0.0  # that a step with prompts should stay under; 0: as long as it takes
    vocabulary_size: int = 2**31 - 1  # tokens that may be drawn, and of which masks speak
    whole: bool = False  # whether a step must have all of a sequence's prompt or nothing of it


@dataclass(slots=True)
class BatchCounters:
    """Totals since the start, in tokens, and how often a sequence was preempted."""

    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_queries_tokens: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0
    dropped_rows: int = 0  # computed for sequences that had ended meanwhile
    drafts: int = 0  # tokens that were guessed, and computed to be verified
    accepted_drafts: int = 0  # of these, that were drawn
    memory_shortages: int = 0  # steps that found no memory on the device


class StepReport(NamedTuple):
    """What one step brought. Without rows (nothing to do, or the executor failed) it teaches nothing about speed."""

    updates: list[SequenceUpdate]
    num_decodes: int = 0
    num_prefill_tokens: int = 0
    num_drafts: int = 0
    num_accepted: int = 0  # of these
    seconds: float = 0.0  # from the step before, or its own launch where that came later

    @property
    def num_rows(self) -> int:
        """Rows of the step."""
        return self.num_decodes + self.num_prefill_tokens + self.num_drafts
