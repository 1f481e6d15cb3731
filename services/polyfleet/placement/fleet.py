"""What placement knows: frozen facts about workers and requests. Built from protos at the edges, never changed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, unique
from typing import NamedTuple

from polyfleet.wire.features import FIRST_FEATURES


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


@unique
class Role(str, Enum):
    """What a worker's deployment or pool is for."""

    BOTH = "both"
    PREFILL = "prefill"  # it computes prompts for others, and whole requests where that is not expected to pay
    DECODE = "decode"  # prompts that are long may come to it computed


class Revision(NamedTuple):
    """One of a deployment's revisions."""

    deployment: str
    number: int


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker with its last report. Rates are tokens per second, 0 while not known.

    A decode step of n sequences that hold t tokens in the KV cache takes `step_seconds` + n x
    `step_seconds_per_sequence` + t x `step_seconds_per_token` seconds; all 0: not known.
    """

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
    step_seconds: float = 0.0
    step_seconds_per_sequence: float = 0.0
    step_seconds_per_token: float = 0.0
    device_name: str = ""
    deployment: str = ""
    revision: Revision | None = None  # None: none that is known
    dtype: str = ""
    features: frozenset[str] = FIRST_FEATURES
    role: Role = Role.BOTH
    fetch_tokens_per_second: float = 0.0  # of prompts whose keys and values come from other workers, on their way
    import_tokens_per_second: float = 0.0  # and while its engine takes them in and computes nothing
    nonsense: str = ""  # what of its last report can't be; such a worker gets nothing until it reports sense


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
    `revision` is the one that it was given to: others take it where none of that one can.
    `cached_tokens` holds, by worker id, how many prompt tokens that worker is known to have in its prefix cache.
    `output_tokens` is the most that it generates, 0 where it does not say.
    `first_token_seconds` and `token_seconds` are what its answer should keep; 0: no such objective.
    `bound` says that what is computed of its prompt can't travel from worker to worker.
    `serial` numbers the requests of one gateway, for round robin.
    """

    model: str
    prompt_tokens: int
    max_tokens: int
    excluded: frozenset[str] = frozenset()
    key: str = ""
    cached_tokens: Mapping[str, int] = field(default_factory=dict)
    fingerprint: str | None = None
    output_tokens: int = 0
    features: frozenset[str] = frozenset()
    tenant: str = ""
    first_token_seconds: float = 0.0
    token_seconds: float = 0.0
    serial: int = 0
    revision: Revision | None = None
    bound: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What placement thinks of one worker: why it was dropped, or what is expected of it, in seconds.

    `score` is what decides, the least wins: expected completion time and what the policy's weights add to it.
    """

    worker_id: str
    dropped: str = ""
    expected_wait_seconds: float = 0.0  # until the first token
    token_seconds: float = 0.0  # from token to token behind it
    completion_seconds: float = 0.0
    cached_tokens: int = 0
    score: float = 0.0
