"""Steps that are planned while others are under way: what ends, is cancelled, preempted or fails meanwhile."""

import pytest
from tests.support.batching import Outcomes, assert_right, make_batcher, prompt, request, run_all
from tests.support.fake_executor import expected_tokens

from polyfleet.engine.executor import FAULTS, DeviceTimeout, Fault
from polyfleet.wire.answers import FinishReason
from polyfleet.wire.requests import SequenceRequest

DEPTHS = pytest.mark.parametrize("depth", [1, 2, 3])


class TestAhead:
    def test_a_step_is_planned_before_the_last_ones_tokens_are_known(self) -> None:
        batcher, executor = make_batcher(depth=2)
        batcher.add(request(1, 5, 6))
        outcome = run_all(batcher)
        assert_right(outcome, request(1, 5, 6))
        assert [each.ahead for each in executor.batches] == [False, True, True, True, True, True]

    def test_no_row_is_planned_behind_the_last_token(self) -> None:
        batcher, executor = make_batcher(depth=3)
        batcher.add(request(1, 5, 4))
        batcher.add(request(2, 5, 1))
        run_all(batcher)
        assert sum(each.num_tokens for each in executor.batches) == 5 + 3 + 5
        assert batcher.counters.dropped_rows == 0

    def test_what_a_stop_token_made_superfluous_is_dropped_and_counted(self) -> None:
        stop = expected_tokens(request(1, 5, 9), 256)[0][3]
        batcher, _ = make_batcher(depth=2)
        stopped = request(1, 5, 9, stop_token_ids=(stop,))
        batcher.add(stopped)
        outcome = run_all(batcher)["s1"]
        assert (outcome.token_ids, outcome.finish_reason) == (expected_tokens(stopped, 256)[0], FinishReason.STOP)
        assert batcher.counters.dropped_rows == 1

    def test_a_slot_is_given_out_again_behind_its_last_step(self) -> None:
        batcher, _ = make_batcher(depth=2, max_sequences=1, step_tokens=16)
        batcher.add(request(1, 5, 60))
        outcomes = Outcomes()
        for _ in range(3):
            outcomes.add(batcher.step())
        batcher.add(request(2, 5, 3))
        batcher.cancel("s1")
        batcher.check()
        assert batcher.pool.num_free < batcher.pool.num_blocks  # what the step under way writes
        run_all(batcher, outcomes)
        assert_right(outcomes, request(2, 5, 3))
        assert batcher.counters.dropped_rows == 1

    def test_blocks_that_no_step_writes_are_free_at_once(self) -> None:
        batcher, _ = make_batcher(depth=2)
        batcher.add(request(1, 40, 60))
        for _ in range(3):
            batcher.step()
        batcher.cancel("s1")
        assert batcher.pool.num_blocks - batcher.pool.num_free == 1
        batcher.step()
        assert batcher.pool.num_free == batcher.pool.num_blocks

    def test_growth_ahead_waits_rather_than_preempts(self) -> None:
        batcher, executor = make_batcher(num_blocks=6, depth=2, max_sequences=2, step_tokens=16)
        first, second = request(1, 8, 16), request(2, 8, 16)
        batcher.add(first)
        batcher.add(second)
        outcomes = run_all(batcher)
        assert batcher.counters.preemptions == 1  # of the second, when nothing was under way
        assert_right(outcomes, first, context_length=24)
        assert_right(outcomes, second, context_length=24)
        assert any(not each.ahead for each in executor.batches[1:])

    def test_an_embedding_in_chunks_ends_with_its_last(self) -> None:
        for depth in (2, 3):
            batcher, _ = make_batcher(depth=depth, step_tokens=8, max_sequences=4)
            batcher.add(request(1, 21, 1))
            run_all(batcher)
            assert not batcher.has_work


class TestFailures:
    @DEPTHS
    @pytest.mark.parametrize("call", ["launch", "draw", "collect"])
    def test_tokens_of_earlier_steps_come_before_a_failure(self, depth: int, call: str) -> None:
        batcher, executor = make_batcher(depth=depth)
        batcher.add(request(1, 5, 30))
        outcomes = Outcomes()
        for _ in range(4):
            outcomes.add(batcher.step())
        executor.failure, executor.fails_in = RuntimeError("the device fell off the bus"), call
        before = len(executor.batches)
        while not outcomes["s1"].ended:
            outcomes.add(batcher.step())
            batcher.check()
        tokens = expected_tokens(request(1, 5, 30), 256)[0]
        assert outcomes["s1"].error.endswith("RuntimeError: the device fell off the bus")
        assert outcomes["s1"].token_ids == tokens[: len(outcomes["s1"].token_ids)]
        assert len(outcomes["s1"].token_ids) >= (before if call == "launch" else 4)
        batcher.add(request(2, 5, 3))
        run_all(batcher, outcomes)
        assert_right(outcomes, request(2, 5, 3))

    @DEPTHS
    def test_blocks_with_what_is_not_finite_are_cleared_before_they_are_given_out(self, depth: int) -> None:
        batcher, executor = make_batcher(num_blocks=8, depth=depth, max_sequences=2, step_tokens=16)
        for number in range(6):
            batcher.add(request(number, 7, 9))
        outcomes = Outcomes()
        while batcher.has_work:
            executor.fault = len(executor.batches) in (2, 9, 17)
            outcomes.add(batcher.step())
            batcher.check()
        failed = [key for key, each in outcomes.items() if each.error]
        assert 1 <= len(failed) <= 3
        assert {outcomes[key].error for key in failed} == {FAULTS[Fault.NOT_FINITE]}
        for number in range(6):
            if f"s{number}" not in failed:
                assert_right(outcomes, request(number, 7, 9), context_length=32)
        assert any(each.cleared for each in executor.batches)

    @DEPTHS
    def test_a_hung_device_is_an_error_that_ends_no_sequence(self, depth: int) -> None:
        batcher, executor = make_batcher(depth=depth)
        batcher.add(request(1))
        executor.failure, executor.fails_in = DeviceTimeout("a step took over 300 s"), "collect"
        with pytest.raises(DeviceTimeout, match="a step took over 300 s"):
            batcher.step()
        assert len(batcher.ledger.running) == 1
        assert batcher.has_work


class TestMemory:
    @DEPTHS
    def test_a_step_that_is_too_large_is_planned_in_smaller_ones(self, depth: int) -> None:
        batcher, executor = make_batcher(depth=depth, step_tokens=32, max_sequences=8)
        executor.most_rows = 9
        requests = [request(number, 20, 5) for number in range(6)]
        for each in requests:
            batcher.add(each)
        outcomes = run_all(batcher)
        for each in requests:
            assert_right(outcomes, each)
        assert max(each.num_tokens for each in executor.batches) <= 9

    @DEPTHS
    @pytest.mark.parametrize("call", ["launch", "draw", "collect"])
    def test_out_of_memory_loses_nobodys_request(self, depth: int, call: str) -> None:
        batcher, executor = make_batcher(depth=depth, step_tokens=32, max_sequences=8)
        requests = [request(number, 10, 8) for number in range(6)]
        for each in requests:
            batcher.add(each)
        outcomes = Outcomes()
        for number in range(4):
            if number in (0, 3):
                executor.failure, executor.fails_in = MemoryError(), call
            outcomes.add(batcher.step())
            batcher.check()
        run_all(batcher, outcomes)
        for each in requests:
            assert_right(outcomes, each)
        assert batcher.counters.preemptions > 0

    def test_steps_fit_the_memory_from_then_on(self) -> None:
        batcher, executor = make_batcher(depth=2, step_tokens=64, max_sequences=8)
        executor.memory_rows = 10
        for number in range(5):
            batcher.add(request(number, 30, 4))
        outcomes = run_all(batcher)
        assert not any(each.error for each in outcomes.values())
        for number in range(5):
            assert_right(outcomes, request(number, 30, 4))

    def test_a_row_that_never_fits_fails(self) -> None:
        batcher, executor = make_batcher()
        executor.memory_rows = 0
        batcher.add(request(1, 6))
        outcome = run_all(batcher)["s1"]
        assert outcome.error == "the engine could not compute a step: MemoryError"


class TestStepTime:
    def test_a_short_prompt_does_not_wait_for_the_end_of_a_long_one(self) -> None:
        batcher, _ = make_batcher(num_blocks=800, step_tokens=64, max_sequences=8)
        batcher.add(request(1, 2500, 4))
        outcomes = Outcomes()
        for _ in range(3):
            outcomes.add(batcher.step())
        batcher.add(request(2, 12, 2))
        outcomes.add(batcher.step())
        assert len(outcomes["s2"].token_ids) == 1
        assert "s1" not in outcomes
        run_all(batcher, outcomes)
        assert_right(outcomes, request(1, 2500, 4), context_length=3200)

    def test_short_prompts_leave_half_of_a_step_to_the_first_in_rank(self) -> None:
        batcher, executor = make_batcher(num_blocks=800, step_tokens=64, max_sequences=32)
        batcher.add(request(0, 600, 2))
        for number in range(1, 200):
            batcher.add(request(number % 90, 30, 1, sequence_id=f"n{number}"))
        slots = []
        for _ in range(18):
            batcher.step()
            slots.append(sum(len(each.token_ids) for each in executor.batches[-1].slices if each.slot == 0))
        assert min(slots) >= 32

    def test_rows_adapt_to_the_time_that_steps_take(self) -> None:
        now = [0.0]
        batcher, executor = make_batcher(
            num_blocks=800, step_tokens=256, max_sequences=4, step_seconds=0.5, clock=lambda: now[0]
        )
        collect = executor.collect

        def slow(*arguments: object) -> object:
            now[0] += 0.01 * executor.batches[-1].num_tokens
            return collect(*arguments)  # type: ignore[arg-type]

        executor.collect = slow  # type: ignore[assignment,method-assign]
        batcher.add(SequenceRequest("long", prompt(1, 2500), max_tokens=2))
        run_all(batcher)
        sizes = [each.num_tokens for each in executor.batches]
        assert sizes[0] == 16
        assert max(sizes) <= 55
        assert all(40 <= size <= 55 for size in sizes[1:-2])

    @pytest.mark.parametrize("depth", [1, 2])
    def test_preemption_does_not_lose_a_long_prefill(self, depth: int) -> None:
        batcher, executor = make_batcher(num_blocks=18, step_tokens=4, max_sequences=2, depth=depth)
        batcher.add(request(1, 60, 4))
        outcomes = Outcomes()
        for _ in range(2):
            outcomes.add(batcher.step())
        batcher.add(request(2, 4, 30, priority=1))
        run_all(batcher, outcomes)
        assert_right(outcomes, request(1, 60, 4), context_length=72)
        assert_right(outcomes, request(2, 4, 30))
        assert batcher.counters.preemptions == 1
        slices = [each for batch in executor.batches for each in batch.slices if each.token_ids[0] in prompt(1, 60)]
        starts = [each.start for each in slices if len(each.token_ids) > 1]
        assert starts == sorted(starts)  # no chunk of the prompt was computed twice
        assert starts[-1] > 40
