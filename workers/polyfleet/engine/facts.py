"""What an engine tells of itself: plain frozen data, the same in one process and across two."""

from dataclasses import dataclass
from typing import NamedTuple

from polyfleet.wire.features import FEATURES
from polyfleet.wire.requests import Pooling


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What a loaded engine serves, as `polyfleet.v1.ModelInfo` states it. Nothing in it changes."""

    name: str  # as the model file calls it
    architecture: str
    context_length: int  # tokens of one sequence, prompt and output together
    vocabulary_size: int
    hidden_size: int
    block_size: int
    num_blocks: int
    max_sequences: int
    dtype: str  # that the executor computes in
    end_token_ids: tuple[int, ...]
    fingerprint: str = ""  # of configuration, weights and tokenizer, wherever their files lie
    features: tuple[str, ...] = FEATURES  # that requests may need of it
    executor: str = ""  # that runs it
    pooling: Pooling | None = None  # as its own files want it
    normalized: bool = False  # whether they want vectors of length 1
    embeds_only: bool = False  # whether it has no tokens to draw
    cross_encoder: bool = False  # whether an embedding is one number, which ranks a document
    passed_over: tuple[str, ...] = ()  # the ones before it, each with the reason in a sentence
    speculation: str = ""  # what drafts tokens, or why nothing does although it was asked for


class LoadedAdapter(NamedTuple):
    """An adapter that an engine has."""

    fingerprint: str  # by which requests name it
    rank: int


class EngineStatus(NamedTuple):
    """How the engine is doing; counters are totals since it started. Ledger: admitted = all other states together."""

    running_sequences: int = 0
    waiting_sequences: int = 0
    waiting_prefill_tokens: int = 0
    free_blocks: int = 0  # free or evictable
    prefill_tokens_per_second: float = 0.0  # moving average over served steps
    decode_tokens_per_second: float = 0.0  # of one sequence
    steps: int = 0
    step_seconds: float = 0.0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    prefix_queries_tokens: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0
    admitted: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    step_rows: int = 0
    dropped_rows: int = 0  # computed ahead for sequences that had ended meanwhile
    evictions: int = 0  # of cached KV blocks, whose place others needed
    drafts: int = 0  # tokens that were guessed, and computed to be verified
    accepted_drafts: int = 0  # of these, that were drawn
    memory_shortages: int = 0  # steps that found no memory on the device, and were computed again as smaller ones
    # What a decode step takes: + sequences x per_sequence + tokens that they hold x per_token. All 0: not known yet.
    decode_step_seconds: float = 0.0
    decode_step_seconds_per_sequence: float = 0.0
    decode_step_seconds_per_token: float = 0.0
    restored_tokens: int = 0  # of prompts, from host memory
    host_blocks: int = 0  # KV blocks that are there
    disk_tokens: int = 0  # of prompts, read from local disk
    disk_blocks: int = 0  # KV blocks that are there
    disk_problems: tuple[int, ...] = ()  # by what, as `kvcache.travelling.DISK_PROBLEMS`
    fetched_tokens: int = 0  # of prompts, from other workers
    given_tokens: int = 0  # to other workers
    fetches: int = 0  # that brought what was wanted
    failed_fetches: tuple[int, ...] = ()  # by why, as `kvcache.travelling.FAILURES`
    prefills_apart: int = 0  # prompts that other workers computed for this one
    failed_prefills_apart: tuple[int, ...] = ()  # that this one computed after all, by why
    prompts_for_others: int = 0  # that this one began to compute for other workers
    fetch_tokens_per_second: float = 0.0  # of prompts on their way; 0: not known, or not of late
    import_tokens_per_second: float = 0.0  # the same of those that have come, while no step is launched
