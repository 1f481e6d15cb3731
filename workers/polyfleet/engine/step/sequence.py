"""Sequence: one continuation on its way through the engine, with its tokens, its blocks and its state."""

from collections.abc import Mapping
from collections.abc import Sequence as Tokens
from dataclasses import InitVar, dataclass, field
from enum import Enum, unique
from typing import Any, Protocol

from numpy.typing import NDArray

from polyfleet.engine.step.image_rows import SequenceImages
from polyfleet.engine.step.needs import NO_ADAPTER, Need
from polyfleet.sampling.arrays import Int32s
from polyfleet.wire.answers import FinishReason, SampledToken, SequenceUpdate
from polyfleet.wire.hashing import ROOT_HASH, grain_hash, seen_by
from polyfleet.wire.requests import Pooling, SequenceRequest

Place = tuple[int, int]  # slot and generation: of one run of a sequence, from its start to its end or preemption


@unique
class SequenceState(str, Enum):
    """Where a sequence stands. It holds blocks and a slot only while RUNNING."""

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


class TokenMask(Protocol):
    """Says which tokens may follow; asked before each draw of its sequence."""

    @property
    def ready(self) -> bool:
        """Whether it can say so at once; its sequence starts when it can."""
        ...

    def fill(self, generated_ids: Tokens[int], bits: Int32s) -> None:
        """Leave those bits [ceil(V / 32)] set whose tokens may follow, at least one; given, all are (`sampling.masks`).

        What stands behind the last token's says nothing. The last of `generated_ids` may be drafts, each of which the
        mask allowed: the next time others may stand in their place. Raises GrammarError where what the request asks for
        can't be gone on with, whichever worker tries.
        """
        ...


@dataclass(slots=True)
class Held:
    """What a sequence holds of a pool of blocks."""

    blocks: list[int] = field(default_factory=list)
    num_published: int = 0  # leading blocks that the PrefixIndex knows
    num_returned: int = 0  # leading blocks that are given back; the next one stands in their places


@dataclass(slots=True, eq=False)
class Sequence:
    """`num_computed` tokens have their keys and values in `blocks`, or will have behind the steps under way.

    Of these, `num_settled` are in steps that were collected and found good.
    """

    request: SequenceRequest
    arrival: int  # a running number; kept when preempted
    arrival_seconds: float
    longest: int  # tokens at which it ends; told the context's length, it is less where its request wants less
    end_token_ids: InitVar[frozenset[int]] = frozenset()  # the model's own
    vocabulary_size: int = 0
    ends: frozenset[int] = field(init=False)  # tokens that end it
    shortest: int = field(init=False)  # tokens, prompt and generated, before which they are not drawn
    state: SequenceState = SequenceState.WAITING
    sequence_id: str = ""
    num_prompt: int = 0  # tokens of its prompt
    most_generated: int = 0  # tokens at which it ends, its prompt left out
    generated_ids: list[int] = field(default_factory=list)
    num_tokens: int = 0  # prompt, generated, and those that are being drawn
    num_computed: int = 0
    num_settled: int = 0
    place: Place | None = None
    last_step: int = 0  # the number of the last step that has rows of it
    held: Held = field(default_factory=Held)
    room: int = 0  # tokens that it has blocks for
    local: Held = field(default_factory=Held)  # of caches with a window, where they have a pool of their own
    root: bytes = ROOT_HASH  # of its prefix chain
    hashes: list[bytes] = field(default_factory=list)  # of the full blocks so far, for the PrefixIndex
    pooled: NDArray[Any] | None = None
    cached_tokens: int = 0  # prompt tokens that the first step found computed
    queue_seconds: float | None = None  # from arrival to the first step
    mask: TokenMask | None = None
    adapter: int = NO_ADAPTER  # the executor's number of it
    images: SequenceImages | None = None  # that its prompt shows
    arriving: bool = False  # whether the beginning of its prompt is being fetched
    needs: int = 0  # `needs.Need` of its draws
    pooling: Pooling | None = None  # how its hidden states are pooled, where an embedding is wanted
    reported: bool = False  # whether its first update has left
    last_usual: int = 0  # generated tokens from which on the next one's update may say more than that token
    scoring: bool = False  # whether the prompt's tokens are being looked up in what each row gives before them
    scores: list[SampledToken] = field(default_factory=list)  # of the prompt's tokens but the first, as far as they are
    drafts: Tokens[int] = ()  # tokens guessed to follow those that it has, which the next step is to verify

    def __post_init__(self, end_token_ids: frozenset[int]) -> None:
        request = self.request
        self.sequence_id = request.sequence_id
        if request.max_tokens is not None:
            self.longest = min(len(request.prompt_ids) + request.max_tokens, self.longest)
        self.num_prompt = len(request.prompt_ids)
        self.most_generated = self.longest - self.num_prompt
        self.ends = frozenset(request.stop_token_ids) | (frozenset() if request.ignore_eos else end_token_ids)
        self.shortest = len(request.prompt_ids) + request.min_tokens
        self.generated_ids.extend(self.request.generated_ids)
        self.num_tokens = len(self.request.prompt_ids) + len(self.generated_ids)
        self.pooling = self.request.pooling

    @property
    def blocks(self) -> list[int]:
        """Those that it holds of the first pool."""
        return self.held.blocks

    @blocks.setter
    def blocks(self, blocks: list[int]) -> None:
        self.held.blocks = blocks

    @property
    def rank(self) -> tuple[int, int]:
        """Order of service: the smaller goes first."""
        return (-self.request.priority, self.arrival)

    @property
    def running_place(self) -> Place:
        """Where it runs; raises RuntimeError where it does not."""
        if self.place is None:
            raise RuntimeError("a sequence that does not run has no slot")
        return self.place

    @property
    def num_drawing(self) -> int:
        """Tokens that are being drawn."""
        return self.num_tokens - self.num_prompt - len(self.generated_ids)

    @property
    def slot(self) -> int:
        """The slot that it runs in."""
        return self.running_place[0]

    @property
    def num_uncomputed(self) -> int:
        """Tokens without keys and values; 1 for a sequence that decodes."""
        return self.num_tokens - self.num_computed

    @property
    def reads_prefix(self) -> bool:
        """Whether computed blocks may stand in for its own work: not where what is wanted stands before its last."""
        return self.pooling in (None, Pooling.LAST) and not self.wants_scores

    @property
    def wants_scores(self) -> bool:
        """Whether logprobs of its prompt are to be told still."""
        return self.request.prompt_logprobs is not None and self.pooling is None and not self.reported

    @property
    def num_unscored(self) -> int:
        """Rows left whose next token is the prompt's: each takes a draw that may be that token alone."""
        return len(self.request.prompt_ids) - 1 - self.num_computed

    def move(self, state: SequenceState) -> None:
        """Change state; raises RuntimeError for a change that TRANSITIONS does not have."""
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"a {self.state.value} sequence can't become {state.value}")
        self.state = state

    def next_token(self) -> int:
        """The token at `num_computed`; -1 - slot while it is being drawn."""
        index = self.num_computed - len(self.request.prompt_ids)
        if index < 0:
            return self.request.prompt_ids[index]
        return self.generated_ids[index] if index < len(self.generated_ids) else -1 - self.slot

    def tokens(self, start: int, end: int) -> Tokens[int]:
        """The tokens at positions start … end-1, over prompt, generated ones and drafts alike."""
        prompt = self.request.prompt_ids
        if self.drafts:
            known = len(prompt) + len(self.generated_ids)
            if end > known:
                return (*self.tokens(start, known), *self.drafts[: end - known])
        if start >= len(prompt):
            return self.generated_ids[start - len(prompt) : end - len(prompt)]
        if end <= len(prompt):
            return prompt[start:end]
        return (*prompt[start:], *self.generated_ids[: end - len(prompt)])

    def chain(self, num_blocks: int, block_size: int) -> list[bytes]:
        """The hashes of the first `num_blocks` blocks, which must be full."""
        hashes = self.hashes
        while len(hashes) < num_blocks:
            start = len(hashes) * block_size
            parent = hashes[-1] if hashes else self.root
            if self.images is not None:
                parent = seen_by(parent, self.images.digests(start, start + block_size))
            hashes.append(grain_hash(parent, self.tokens(start, start + block_size)))
        return hashes if len(hashes) == num_blocks else hashes[:num_blocks]

    @property
    def ready(self) -> bool:
        """Whether it may start: its grammar is compiled, its images are seen, and what is fetched for it has come."""
        seen = self.images is None or self.images.ready
        return seen and not self.arriving and (self.mask is None or self.mask.ready)

    @property
    def masked(self) -> bool:
        """Whether some token may not be drawn next, or has a bias."""
        return self.mask is not None or bool(self.request.logit_bias) or self.num_tokens < self.shortest

    def barred(self, behind: int = 1) -> Tokens[int]:
        """The tokens that a draw under way may not take, whatever its mask says: they would end it too early.

        `behind`: of the tokens that are being drawn, which one from the end.
        """
        if self.num_tokens - behind < self.shortest:
            return [each for each in self.ends if each < self.vocabulary_size]
        if self.mask is None and not self.request.logit_bias:
            self.needs &= ~Need.MASKS
        return ()

    def plan(self, size: int, step: int) -> int:
        """A step was launched that computes the next `size` tokens, drafts included; says how many it draws."""
        self.last_step = step
        self.num_computed += size
        if self.num_computed < self.num_tokens or self.pooling is not None:
            return 0
        num_draws = 1 + self.num_computed - self.num_tokens
        self.num_tokens += num_draws
        return num_draws

    def roll_back(self) -> None:
        """The drafts of its step, the only one under way, are verified: what was computed behind them is void."""
        self.num_tokens = len(self.request.prompt_ids) + len(self.generated_ids)
        self.num_computed = self.num_settled

    def accept(self, token_id: int) -> FinishReason | None:
        """Take the drawn token and say whether the sequence has ended. A stop or end token is not appended."""
        if token_id in self.ends:
            self.num_tokens -= 1
            return FinishReason.STOP
        self.generated_ids.append(token_id)
        return FinishReason.LENGTH if len(self.generated_ids) >= self.most_generated else None

    def news(self, tokens: tuple[SampledToken, ...] = (), **end: Any) -> SequenceUpdate:
        """An update with these tokens and how it ended; the first one also says how the sequence began."""
        if not self.reported:
            self.reported, self.last_usual = True, self.most_generated - 1
            end |= {"cached_tokens": self.cached_tokens, "queue_seconds": self.queue_seconds}
            end |= {"prompt_logprobs": tuple(self.scores)}
        return SequenceUpdate(self.sequence_id, tokens, **end)

    def add_pooled(self, values: NDArray[Any]) -> None:
        """Add one step's pooled hidden states to those before."""
        self.pooled = values.astype(float) if self.pooled is None else self.pooled + values

    def embedding(self) -> tuple[float, ...]:
        """The pooled hidden states of the whole prompt."""
        if self.pooled is None:
            raise RuntimeError("nothing was pooled")
        mean = self.pooling is Pooling.MEAN
        return tuple((self.pooled / self.num_tokens if mean else self.pooled).tolist())

    def forget_computed(self) -> None:
        """Start over: nothing is computed, nothing is held (the caller has released it)."""
        self.held, self.local, self.room = Held(), Held(), 0
        self.place = None
        self.num_tokens -= self.num_drawing
        self.num_computed = self.num_settled = 0
        self.pooled = None
        self.scores.clear()
        self.drafts = ()
