"""What goes into the engine and what comes out: plain frozen data, the same in process and across processes."""

from dataclasses import dataclass
from enum import Enum, unique
from functools import lru_cache
from typing import NamedTuple

from polyfleet.wire.options import EngineOptions as EngineOptions
from polyfleet.wire.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0.0)


@unique
class FinishReason(str, Enum):
    """Why a sequence ended well."""

    STOP = "stop"
    LENGTH = "length"


@unique
class PoolingKind(str, Enum):
    """How hidden states become one embedding."""

    MEAN = "mean"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """One continuation to compute. `generated_ids` were produced elsewhere already; computing goes on behind them."""

    sequence_id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams = GREEDY
    max_tokens: int = 16  # generated tokens in all, `generated_ids` included
    generated_ids: tuple[int, ...] = ()
    choice: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    num_logprobs: int | None = None
    priority: int = 0  # higher first
    pooling: PoolingKind | None = None  # set: an embedding of the prompt is wanted, no token
    cache_salt: bytes = b""  # cached prefixes are shared by requests of one salt alone


class SampledToken(NamedTuple):
    """A drawn token. Logprobs are natural logs of the model's own distribution, before penalties and temperature."""

    token_id: int
    logprob: float = 0.0
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


class SequenceUpdate(NamedTuple):
    """News of one sequence after a step. It has ended when `finish_reason` or `error` is set."""

    sequence_id: str
    tokens: tuple[SampledToken, ...] = ()  # stop and end tokens are not among them
    finish_reason: FinishReason | None = None
    error: str = ""
    cached_tokens: int | None = None  # with the first update: prompt tokens read from the prefix cache
    queue_seconds: float | None = None  # with the first update: from add() to the first step
    embedding: tuple[float, ...] = ()


@lru_cache(maxsize=1 << 14)
def plain_token(token_id: int) -> SampledToken:
    """A token without logprobs. Every step wants one of every sequence, and most of them again and again."""
    return SampledToken(token_id)


def plain_update(sequence_id: str, token: SampledToken) -> SequenceUpdate:
    """SequenceUpdate(sequence_id, (token,)), at half its cost."""
    return tuple.__new__(SequenceUpdate, (sequence_id, (token,), None, "", None, None, ()))


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
    dtype: str
    end_token_ids: tuple[int, ...]
    fingerprint: str = ""  # of configuration, weights and tokenizer, wherever their files lie
    executor: str = ""  # that runs it
    passed_over: tuple[str, ...] = ()  # the ones before it, each with the reason in a sentence


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
