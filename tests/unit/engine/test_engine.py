"""Engine over the fake executor: what it refuses, its facts, its status and ledger, and what importing it costs."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace

import pytest
from tests.support.batching import Outcome
from tests.support.fake_executor import HIDDEN, VOCABULARY, FakeExecutor, expected_tokens
from tests.support.small_config import SMALL

from polyfleet.engine.batching.batch import BatchCounters
from polyfleet.engine.choosing.sizing import capacity_of
from polyfleet.engine.engine import Engine
from polyfleet.engine.facts import EngineStatus
from polyfleet.wire.answers import FinishReason
from polyfleet.wire.limits import FieldError
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import Pooling, SequenceRequest
from polyfleet.wire.sampling import SamplingParams

CONFIG = replace(
    SMALL, name="fake", vocabulary_size=VOCABULARY, hidden_size=HIDDEN, context_length=128, end_token_ids=(3,)
)
OPTIONS = EngineOptions(
    dtype="float32", context_length=100, kv_cache_tokens=256, max_sequences=4, step_tokens=32, block_size=4
)
GOOD = SequenceRequest("one", (1, 2, 4), max_tokens=9)


def make_engine(clock: Callable[[], float] = lambda: 0.0) -> tuple[Engine, FakeExecutor]:
    executor = FakeExecutor()
    executor.allocate(capacity_of(OPTIONS))
    return Engine(executor, CONFIG, OPTIONS, clock=clock), executor


def step(engine: Engine, outcomes: dict[str, Outcome]) -> None:
    for update in engine.step():
        outcomes.setdefault(update.sequence_id, Outcome()).add(update)
    engine.check()


def run(engine: Engine, outcomes: dict[str, Outcome] | None = None) -> dict[str, Outcome]:
    outcomes = {} if outcomes is None else outcomes
    while engine.has_work:
        step(engine, outcomes)
    return outcomes


def balance(status: EngineStatus) -> int:
    """0 when the ledger balances."""
    ended = status.finished + status.failed + status.cancelled
    return status.admitted - ended - status.running_sequences - status.waiting_sequences


def test_every_figure_of_the_status_stands_in_its_field() -> None:
    engine = make_engine()[0]
    batcher = engine._batcher
    wanted: dict[str, int] = {}
    ledger = ("admitted", "finished", "failed", "cancelled")
    for owner, names in ((batcher.ledger, ledger), (batcher.counters, [each.name for each in fields(BatchCounters)])):
        for name in names:
            wanted[name] = 100 + len(wanted)
            setattr(owner, name, wanted[name])
    engine._steps, engine._step_seconds, engine._step_rows = 1, 2.5, 3
    batcher.pool.evictions = 4
    wanted |= {"steps": 1, "step_rows": 3, "evictions": 4, "free_blocks": 64}
    status = engine.status()._asdict()
    assert {name: status[name] for name in wanted} == wanted
    assert status["step_seconds"] == 2.5
    engine._rates.add_step(3, 0, 1.0)
    assert (engine.status().prefill_tokens_per_second, engine.status().decode_tokens_per_second) == (0.0, 1.0)


def test_facts_state_what_is_served() -> None:
    facts = make_engine()[0].facts
    assert (facts.name, facts.architecture, facts.dtype) == ("fake", "llama", "float32")
    assert (facts.context_length, facts.vocabulary_size, facts.hidden_size) == (100, VOCABULARY, HIDDEN)
    assert (facts.block_size, facts.num_blocks, facts.max_sequences) == (4, 64, 4)
    assert facts.end_token_ids == (3,)


def test_the_dtype_is_the_executors_whatever_was_asked_for() -> None:
    executor = FakeExecutor()
    executor.allocate(capacity_of(OPTIONS))
    assert Engine(executor, CONFIG, replace(OPTIONS, dtype="bfloat16")).facts.dtype == "float32"


def test_end_tokens_of_the_model_end_a_sequence() -> None:
    engine, _ = make_engine()
    requests = [
        replace(GOOD, sequence_id=str(seed), sampling=SamplingParams(seed=seed), max_tokens=90) for seed in (1, 2, 9)
    ]
    for request in requests:
        engine.add(request)
    outcomes = run(engine)
    for request in requests:
        token_ids, reason = expected_tokens(request, 100, frozenset({3}))
        assert (outcomes[request.sequence_id].token_ids, outcomes[request.sequence_id].finish_reason) == (
            token_ids,
            FinishReason(reason),
        )
    assert FinishReason.STOP in {outcome.finish_reason for outcome in outcomes.values()}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sequence_id": ""}, "sequence_id: must not be empty"),
        ({"prompt_ids": ()}, "prompt_ids: must hold at least one token"),
        ({"prompt_ids": (1, 97)}, "prompt_ids: must be below the vocabulary size 97, not 97"),
        ({"prompt_ids": (1, -1)}, "prompt_ids: must be below the vocabulary size 97, not -1"),
        ({"prompt_ids": (1,) * 100}, "prompt_ids: must be 1 to 99 tokens with those generated, not 100"),
        ({"generated_ids": (200,)}, "generated_ids: must be below the vocabulary size 97, not 200"),
        ({"stop_token_ids": (97,)}, "stop_token_ids: must be below the vocabulary size 97, not 97"),
        ({"stop_token_ids": frozenset(range(66))}, "stop_token_ids: must be at most 65, not 66"),
        ({"max_tokens": 0}, "max_tokens: must be 1 or more, not 0"),
        ({"max_tokens": 2, "generated_ids": (1, 2)}, "max_tokens: must be over the 2 tokens generated already, not 2"),
        ({"sampling": SamplingParams(temperature=float("nan"))}, "sampling.temperature: must be a finite number"),
        ({"sampling": SamplingParams(top_p=0.0)}, "sampling.top_p: must be over 0 up to 1, not 0"),
        ({"sampling": SamplingParams(seed=2**64)}, "sampling.seed: must fit an unsigned 64-bit integer"),
        ({"logprobs": 21}, "logprobs: must be from 0 to 20, not 21"),
        ({"priority": 101}, "priority: must be from -100 to 100, not 101"),
        ({"choice": -1}, "choice: must be from 0 to"),
        ({"pooling": Pooling.MEAN, "generated_ids": (1,)}, "generated_ids: must be empty for an embedding"),
    ],
)
def test_bad_requests_are_refused_by_name_and_cost_nothing(changes: dict[str, object], message: str) -> None:
    engine, _ = make_engine()
    with pytest.raises(FieldError) as raised:
        engine.add(replace(GOOD, **changes))  # type: ignore[arg-type]
    assert str(raised.value).startswith(message)
    assert not engine.has_work
    assert engine.status() == make_engine()[0].status()


def test_a_context_of_one_token_says_why_no_prompt_can_be_answered() -> None:
    executor = FakeExecutor()
    executor.allocate(capacity_of(OPTIONS))
    engine = Engine(executor, CONFIG, replace(OPTIONS, context_length=1))
    with pytest.raises(FieldError, match="prompt_ids: can't be answered: the context has one token"):
        engine.add(SequenceRequest("a", (1,), max_tokens=1))


def test_an_id_can_be_used_once_at_a_time() -> None:
    engine, _ = make_engine()
    engine.add(GOOD)
    with pytest.raises(FieldError, match="sequence_id: is in use"):
        engine.add(GOOD)
    assert engine.status().admitted == 1


def test_status_counts_and_the_ledger_balances() -> None:
    engine, executor = make_engine()
    for number in range(6):
        engine.add(SequenceRequest(f"s{number}", (number, 5, 6, 7, 8), max_tokens=4, ignore_eos=True))
    assert (engine.status().waiting_sequences, engine.status().waiting_prefill_tokens) == (6, 30)
    outcomes: dict[str, Outcome] = {}
    step(engine, outcomes)
    status = engine.status()
    assert (status.running_sequences, status.waiting_sequences, status.waiting_prefill_tokens) == (4, 2, 10)
    assert (status.prompt_tokens, status.generated_tokens, status.steps) == (20, 4, 1)
    assert status.free_blocks == 64 - 4 * 2
    assert balance(status) == 0
    assert engine.cancel("s0")
    assert not engine.cancel("s0")
    assert not engine.cancel("nobody")
    executor.fault = True
    run(engine, outcomes)
    status = engine.status()
    assert (status.admitted, status.finished, status.failed, status.cancelled) == (6, 4, 1, 1)
    assert balance(status) == 0
    assert status.free_blocks == 64
    assert (status.running_sequences, status.waiting_sequences, status.waiting_prefill_tokens) == (0, 0, 0)


def test_rates_are_learned_from_steps() -> None:
    now = [0.0]

    def clock() -> float:
        now[0] += 0.25
        return now[0]

    engine, _ = make_engine(clock)
    engine.add(SequenceRequest("one", tuple(range(20)), max_tokens=5, ignore_eos=True))
    now_before = now[0]
    outcomes: dict[str, Outcome] = {}
    step(engine, outcomes)
    first = engine.status()
    assert first.prefill_tokens_per_second == pytest.approx(20 / first.step_seconds)
    assert first.decode_tokens_per_second == 0.0
    run(engine, outcomes)
    last = engine.status()
    assert last.decode_tokens_per_second == pytest.approx(4 / (last.step_seconds - first.step_seconds))
    assert last.steps == 5
    assert last.step_seconds < now[0] - now_before


def test_a_step_without_work_is_no_step() -> None:
    engine, executor = make_engine()
    assert engine.step() == []
    assert engine.status().steps == 0
    assert executor.batches == []


def test_an_executor_that_breaks_is_told_to_its_sequences_alone() -> None:
    engine, executor = make_engine()
    executor.failure = ValueError("the device is gone")
    engine.add(GOOD)
    (update,) = engine.step()
    assert update.error == "the engine could not compute a step: ValueError: the device is gone"
    engine.check()
    engine.add(GOOD)
    assert run(engine)["one"].token_ids == expected_tokens(GOOD, 100, frozenset({3}))[0]


def test_importing_requests_and_batcher_imports_no_tensors_and_no_wire() -> None:
    script = (
        "import sys, polyfleet.engine.facts, polyfleet.engine.batching.batcher, polyfleet.engine.choosing.sizing;"
        "import polyfleet.engine as engine; engine.SequenceRequest; engine.EngineOptions;"
        "found = {name.partition('.')[0] for name in sys.modules} & {'torch', 'grpc', 'ray', 'google'};"
        "sys.exit(f'imported {found}' if found else 0)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_public_names_are_found_lazily() -> None:
    import polyfleet.engine

    assert polyfleet.engine.Engine is Engine
    assert set(polyfleet.engine.__all__) <= set(dir(polyfleet.engine))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = polyfleet.engine.nothing
