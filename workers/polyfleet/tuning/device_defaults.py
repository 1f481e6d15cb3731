"""What fits a kind of device where nothing else is said: the one table of sizing, estimates and templates. Pure."""

from collections.abc import Collection
from dataclasses import dataclass, replace

BLOCK_SIZE = 16  # tokens a KV block, where the device accepts it
ROWS_PER_CORE, SEQUENCES_PER_CORE = 128, 16  # of a host's step


@dataclass(frozen=True, slots=True)
class Defaults:
    """What fits a kind of device."""

    memory_share: float  # of what the weights leave free, for the KV pool at most; of an accelerator's, with weights
    pool_share: float  # of all memory, for the KV pool at most where no model is known
    pool_contexts: int  # whole contexts in the KV pool at most; 0: as many as fit
    step_tokens: int
    max_sequences: int
    step_seconds: float


# A host's memory is other programs' too, and its steps must stay short enough not to hold up decodes. Of few cores:
HOST = Defaults(
    memory_share=0.25, pool_share=0.25, pool_contexts=4, step_tokens=256, max_sequences=32, step_seconds=0.25
)
UNIFIED = Defaults(
    memory_share=0.85, pool_share=0.5, pool_contexts=16, step_tokens=2048, max_sequences=256, step_seconds=0.25
)
# An accelerator's own memory is there to be used: weights and pool take this share of it together.
ACCELERATOR = Defaults(
    memory_share=0.88, pool_share=0.5, pool_contexts=0, step_tokens=2048, max_sequences=256, step_seconds=0.1
)


def defaults_of(*, host: bool, unified_memory: bool = False, cores: int = 0) -> Defaults:
    """The row of a device; `host`: it is the CPU, of so many cores. Many cores compute what an accelerator does."""
    if not host:
        return UNIFIED if unified_memory else ACCELERATOR
    return replace(
        HOST,
        step_tokens=min(max(HOST.step_tokens, ROWS_PER_CORE * cores), ACCELERATOR.step_tokens),
        max_sequences=min(max(HOST.max_sequences, SEQUENCES_PER_CORE * cores), ACCELERATOR.max_sequences),
    )


def usual_block_size(possible: Collection[int]) -> int:
    """Of the block sizes that a device accepts (empty: any) the one next to what is usual."""
    return min(possible or (BLOCK_SIZE,), key=lambda size: (abs(size - BLOCK_SIZE), size))
