"""Helpers of the Batcher's tests: a Batcher over the fake executor, and running it to the end with checks."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from tests.support.fake_executor import VOCABULARY, FakeExecutor, expected_tokens

from polyfleet.engine.batching.batch import BatchLimits, StepReport
from polyfleet.engine.batching.batcher import Batcher
from polyfleet.engine.engine import Engine
from polyfleet.engine.executor import Capacity
from polyfleet.engine.speculation.speculation import Speculator
from polyfleet.wire.answers import FinishReason, SampledToken, SequenceUpdate
from polyfleet.wire.requests import SequenceRequest


def make_batcher(
    num_blocks: int = 64,
    block_size: int = 4,
    max_sequences: int = 16,
    step_tokens: int = 32,
    context_length: int = 0,
    end_token_ids: frozenset[int] = frozenset(),
    prefix_cache: bool = True,
    clock: Callable[[], float] = lambda: 0.0,
    depth: int = 1,
    step_seconds: float = 0.0,
    speculator: Speculator | None = None,
    horizon: int = 0,
    window: int = 0,
    local_blocks: int = 0,
) -> tuple[Batcher, FakeExecutor]:
    """A Batcher whose context is the whole pool unless told otherwise."""
    executor = FakeExecutor(depth, horizon, window)
    context_length = context_length or num_blocks * block_size
    limits = BatchLimits(
        *(max_sequences, step_tokens, context_length, end_token_ids, prefix_cache),
        step_seconds=step_seconds,
        horizon=horizon,
        window=window,
        vocabulary_size=VOCABULARY,
    )
    return over(executor, limits, num_blocks, block_size, clock, speculator, local_blocks), executor


def over(
    executor: FakeExecutor,
    limits: BatchLimits,
    num_blocks: int = 64,
    block_size: int = 4,
    clock: Callable[[], float] = lambda: 0.0,
    speculator: Speculator | None = None,
    local_blocks: int = 0,
) -> Batcher:
    """A Batcher over an executor that has a pool of so many blocks, and one for caches with a window."""
    max_blocks = -(-limits.context_length // block_size)
    capacity = Capacity(num_blocks, block_size, limits.max_sequences, max_blocks, limits.step_tokens)
    capacity = replace(capacity, local_blocks=local_blocks)
    executor.allocate(capacity)
    return Batcher(executor, capacity, limits, clock, speculator)


@dataclass(slots=True)
class Outcome:
    """All that a sequence's updates said."""

    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    error: str = ""
    embedding: tuple[float, ...] = ()
    cached_tokens: int | None = None
    queue_seconds: float | None = None
    num_updates: int = 0
    prompt_logprobs: tuple[SampledToken, ...] = ()

    @property
    def ended(self) -> bool:
        """Whether the last update was the end."""
        return self.finish_reason is not None or bool(self.error)

    def add(self, update: SequenceUpdate) -> None:
        """Take the next update in; nothing may follow the end, and only the first says how it began."""
        assert not self.ended, "an update after the end"
        assert (update.cached_tokens is not None) == (self.num_updates == 0)
        assert (update.queue_seconds is not None) == (self.num_updates == 0)
        if self.num_updates == 0:
            self.cached_tokens, self.queue_seconds = update.cached_tokens, update.queue_seconds
            self.prompt_logprobs = update.prompt_logprobs
        self.num_updates += 1
        self.token_ids += [each.token_id for each in update.tokens]
        self.finish_reason, self.error, self.embedding = update.finish_reason, update.error, update.embedding


class Outcomes(dict[str, Outcome]):
    """Outcomes by sequence id."""

    def add(self, report: StepReport) -> None:
        """Take a step's updates in."""
        for update in report.updates:
            self.setdefault(update.sequence_id, Outcome()).add(update)


def run_all(batcher: Batcher, outcomes: Outcomes | None = None, max_steps: int = 10_000) -> Outcomes:
    """Step until nothing is left, checking every invariant after each step."""
    outcomes = Outcomes() if outcomes is None else outcomes
    for _ in range(max_steps):
        if not batcher.has_work:
            break
        outcomes.add(batcher.step())
        batcher.check()
    assert not len(batcher.ledger), "sequences are left: the batcher makes no progress"
    for lane in batcher.holdings.lanes:
        assert lane.pool.num_free == lane.pool.num_blocks
    return outcomes


def run_engine(engine: Engine, requests: Iterable[SequenceRequest]) -> Outcomes:
    """Step until all of them have ended, checking every invariant after each step."""
    outcomes = Outcomes()
    for each in requests:
        engine.add(each)
    while engine.has_work:
        for update in engine.step():
            outcomes.setdefault(update.sequence_id, Outcome()).add(update)
        engine.check()
    return outcomes


def prompt(number: int, length: int) -> tuple[int, ...]:
    """Tokens that share no beginning with another number's."""
    return (number, *((number * 31 + position * 7) % 97 for position in range(1, length)))


def request(number: int, length: int = 5, max_tokens: int = 6, **changes: object) -> SequenceRequest:
    """A request named after its number, with that number's prompt."""
    made = SequenceRequest(f"s{number}", prompt(number, length), max_tokens=max_tokens)
    return replace(made, **changes)  # type: ignore[arg-type]


def assert_right(outcomes: Outcomes, each: SequenceRequest, context_length: int = 256) -> None:
    """Assert that a sequence came to what it comes to alone."""
    token_ids, reason = expected_tokens(each, context_length)
    outcome = outcomes[each.sequence_id]
    assert (outcome.token_ids, outcome.finish_reason, outcome.error) == (token_ids, FinishReason(reason), "")
