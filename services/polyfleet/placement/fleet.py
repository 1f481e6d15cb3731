"""What placement knows: frozen facts about workers and requests. Built from protos at the edges, never changed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, unique


@unique
class WorkerState(str, Enum):
    """Life of a worker as the fleet sees it; the meanings stand in `polyfleet/v1/fleet.proto`."""

    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    UNHEALTHY = "unhealthy"
    LOST = "lost"
    UNKNOWN = "unknown"  # not told, or by a name that this version does not know


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker with its last report. Rates are tokens per second, 0 while not known."""

    worker_id: str
    address: str
    model: str
    accelerator: str
    state: WorkerState
    context_length: int = 0
    block_size: int = 16
    num_blocks: int = 0
    free_blocks: int = 0
    max_sequences: int = 1
    running_sequences: int = 0
    waiting_sequences: int = 0
    waiting_prefill_tokens: int = 0
    prefill_tokens_per_second: float = 0.0
    decode_tokens_per_second: float = 0.0
    fingerprint: str = ""  # of its model; empty is not known, and equal to empty alone
    tokenizer_hash: str = ""
    circuit_open: bool = False  # it refused or lost the last sequences it got, as the one who places has seen


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """All workers at one moment; `version` grows within one `epoch` (one life of the scheduler)."""

    epoch: str
    version: int
    workers: tuple[Worker, ...]


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """What a request needs of a worker. `excluded` names workers that failed it already.

    `max_tokens` is what must fit behind the prompt: the client's wish, or the least it takes (min_tokens, 1).
    `key` (the request id, say) decides between workers that are equally good; requests without one all go the same way.
    `fingerprint` names the weights and tokenizer of the request; None: any worker of `model` will do.
    `cached_tokens` holds, by worker id, how many prompt tokens that worker is known to have in its prefix cache.
    """

    model: str
    prompt_tokens: int
    max_tokens: int
    excluded: frozenset[str] = frozenset()
    key: str = ""
    cached_tokens: Mapping[str, int] = field(default_factory=dict)
    fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why one worker was dropped, or how long the request is expected to wait for its first token there (seconds)."""

    worker_id: str
    dropped: str = ""
    expected_wait_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Placement:
    """The worker that serves a request (None: nobody can now) and the verdict on each worker of the fleet."""

    worker: Worker | None
    verdicts: tuple[Verdict, ...]
