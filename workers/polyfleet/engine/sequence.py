"""Sequence: one continuation on its way through the engine, with its tokens, its blocks and its state."""

from collections.abc import Mapping
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field, replace
from enum import Enum, unique

from polyfleet.engine.batch import PoolingKind
from polyfleet.engine.request import FinishReason, SequenceRequest, SequenceUpdate
from polyfleet.sampling.counts import TokenCounts
from polyfleet.sampling.draw import Draw, SampledToken
from polyfleet.wire.hashing import ROOT_HASH, grain_hash


@unique
class SequenceState(str, Enum):
    """Where a sequence stands. It holds blocks only while RUNNING."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


_ENDED: frozenset[SequenceState] = frozenset()
TRANSITIONS: Mapping[SequenceState, frozenset[SequenceState]] = {
    SequenceState.WAITING: frozenset({SequenceState.RUNNING, SequenceState.FAILED, SequenceState.CANCELLED}),
    SequenceState.RUNNING: frozenset(
        {SequenceState.WAITING, SequenceState.FINISHED, SequenceState.FAILED, SequenceState.CANCELLED}
    ),  # back to WAITING: preempted
    SequenceState.FINISHED: _ENDED,
    SequenceState.FAILED: _ENDED,
    SequenceState.CANCELLED: _ENDED,
}


@dataclass(slots=True, eq=False)
class Sequence:
    """`num_computed` tokens have their keys and values in `blocks`; the tokens behind them are still to compute."""

    request: SequenceRequest
    arrival: int  # a running number; kept when preempted
    arrival_seconds: float
    state: SequenceState = SequenceState.WAITING
    generated_ids: list[int] = field(default_factory=list)
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)
    root: bytes = ROOT_HASH  # of its prefix chain
    hashes: list[bytes] = field(default_factory=list)  # of the full blocks so far, for the PrefixIndex
    num_published: int = 0  # leading blocks that the PrefixIndex knows
    pooled: tuple[float, ...] = ()
    cached_tokens: int = 0  # prompt tokens that the first step found computed
    queue_seconds: float | None = None  # from arrival to the first step
    counts: TokenCounts | None = None  # where its draws are penalised
    reported: bool = False  # whether its first update has left

    def __post_init__(self) -> None:
        self.generated_ids.extend(self.request.generated_ids)
        if self.request.params.penalised:
            self.counts = TokenCounts(self.request.prompt_ids, self.generated_ids)

    @property
    def rank(self) -> tuple[int, int]:
        """Order of service: the smaller goes first."""
        return (-self.request.priority, self.arrival)

    @property
    def num_tokens(self) -> int:
        """Prompt and generated tokens."""
        return len(self.request.prompt_ids) + len(self.generated_ids)

    @property
    def num_uncomputed(self) -> int:
        """Tokens without keys and values; 1 for a sequence that decodes."""
        return self.num_tokens - self.num_computed

    @property
    def reads_prefix(self) -> bool:
        """Whether computed blocks may stand in for its own work: not where every hidden state is wanted."""
        return self.request.pooling is not PoolingKind.MEAN

    def move(self, state: SequenceState) -> None:
        """Change state; raises RuntimeError for a change that TRANSITIONS does not have."""
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"a {self.state.value} sequence can't become {state.value}")
        self.state = state

    def tokens(self, start: int, end: int) -> Tokens[int]:
        """The tokens at positions start … end-1, over prompt and generated alike."""
        prompt = self.request.prompt_ids
        if start >= len(prompt):
            return self.generated_ids[start - len(prompt) : end - len(prompt)]
        if end <= len(prompt):
            return prompt[start:end]
        return (*prompt[start:], *self.generated_ids[: end - len(prompt)])

    def chain(self, num_blocks: int, block_size: int) -> list[bytes]:
        """The hashes of the first `num_blocks` blocks, which must be full."""
        while len(self.hashes) < num_blocks:
            start = len(self.hashes) * block_size
            parent = self.hashes[-1] if self.hashes else self.root
            self.hashes.append(grain_hash(parent, self.tokens(start, start + block_size)))
        return self.hashes[:num_blocks]

    def draw(self) -> Draw:
        """What to draw behind its present tokens."""
        request = self.request
        return Draw(request.params, request.choice, self.num_tokens, request.num_logprobs, self.counts)

    def accept(self, token: SampledToken, context_length: int, end_token_ids: frozenset[int]) -> FinishReason | None:
        """Append a drawn token and say whether the sequence has ended. A stop or end token is not appended."""
        request = self.request
        if token.token_id in request.stop_token_ids or (not request.ignore_eos and token.token_id in end_token_ids):
            return FinishReason.STOP
        self.generated_ids.append(token.token_id)
        if self.counts is not None:
            self.counts.add(token.token_id)
        if len(self.generated_ids) >= request.max_tokens or self.num_tokens >= context_length:
            return FinishReason.LENGTH
        return None

    def news(self, tokens: tuple[SampledToken, ...] = ()) -> SequenceUpdate:
        """An update with these tokens; the first one also says how the sequence began."""
        update = SequenceUpdate(self.request.sequence_id, tokens)
        if not self.reported:
            self.reported = True
            update = replace(update, cached_tokens=self.cached_tokens, queue_seconds=self.queue_seconds)
        return update

    def add_pooled(self, values: tuple[float, ...]) -> None:
        """Add one slice's pooled hidden states to those before."""
        self.pooled = tuple(map(sum, zip(self.pooled, values, strict=True))) if self.pooled else values

    def embedding(self) -> tuple[float, ...]:
        """The pooled hidden states of the whole prompt."""
        if self.request.pooling is PoolingKind.MEAN:
            return tuple(value / self.num_tokens for value in self.pooled)
        return self.pooled

    def forget_computed(self) -> None:
        """Start over: nothing is computed, no block is held (the caller has released them)."""
        self.blocks = []
        self.num_computed = self.num_published = 0
        self.pooled = ()
