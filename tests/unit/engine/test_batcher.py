"""Batcher: order of service, chunks, prefix reuse, preemption, ends and errors, over an executor that reads blocks."""

from dataclasses import replace

import pytest
from tests.support.batching import Outcomes, assert_right, make_batcher, over, prompt, request, run_all
from tests.support.fake_executor import Batch, expected_tokens

from polyfleet.engine.batching.batch import BatchLimits
from polyfleet.wire.answers import FinishReason
from polyfleet.wire.limits import FieldError
from polyfleet.wire.requests import Pooling, SequenceRequest


def sizes(batch: Batch) -> list[int]:
    return [len(each.token_ids) for each in batch.slices]


class TestComposition:
    def test_decodes_come_first_and_prompts_in_chunks(self) -> None:
        batcher, executor = make_batcher(step_tokens=8, max_sequences=4)
        first, long = request(1, 3, 20), request(2, 20, 4)
        batcher.add(first)
        outcomes = Outcomes()
        outcomes.add(batcher.step())
        batcher.add(long)
        run_all(batcher, outcomes)
        assert [sizes(each) for each in executor.batches[:5]] == [[3], [1, 7], [1, 7], [1, 6], [1, 1]]
        assert [each.slices[1].draw is False for each in executor.batches[1:4]] == [True, True, False]
        assert_right(outcomes, first)
        assert_right(outcomes, long)

    def test_a_newcomer_among_fifteen_decodes_is_served_in_the_next_step(self) -> None:
        batcher, _ = make_batcher(max_sequences=16, step_tokens=64)
        for number in range(15):
            batcher.add(request(number, 4, 30))
        outcomes = Outcomes()
        for _ in range(3):
            outcomes.add(batcher.step())
        batcher.add(request(50, 40, 3))
        outcomes.add(batcher.step())
        assert len(outcomes["s50"].token_ids) == 1
        assert not any(each.ended for each in outcomes.values())
        run_all(batcher, outcomes)

    def test_priority_then_arrival(self) -> None:
        batcher, _ = make_batcher(max_sequences=1, step_tokens=16)
        for number, priority in enumerate((0, 0, 5, -5, 5)):
            batcher.add(request(number, 4, 2, priority=priority))
        ends = []
        while len(batcher.ledger):
            ends += [each.sequence_id for each in batcher.step().updates if each.finish_reason]
        assert ends == ["s2", "s4", "s0", "s1", "s3"]

    def test_a_prompt_of_high_priority_overtakes_one_in_chunks(self) -> None:
        batcher, executor = make_batcher(step_tokens=8, max_sequences=4)
        batcher.add(request(1, 60, 2))
        outcomes = Outcomes()
        outcomes.add(batcher.step())
        batcher.add(request(2, 6, 2, priority=1))
        outcomes.add(batcher.step())
        assert list(outcomes) == ["s2"]
        assert sizes(executor.batches[-1]) == [6, 2]
        run_all(batcher, outcomes)

    def test_no_more_run_than_allowed(self) -> None:
        batcher, executor = make_batcher(max_sequences=3, step_tokens=64)
        for number in range(10):
            batcher.add(request(number))
        run_all(batcher)
        assert max(len(each.slices) for each in executor.batches) == 3

    def test_reports_what_a_step_computed(self) -> None:
        batcher, _ = make_batcher(step_tokens=8, max_sequences=4)
        assert batcher.step().updates == []
        batcher.add(request(1, 3))
        report = batcher.step()
        assert (report.num_decodes, report.num_prefill_tokens) == (0, 3)
        batcher.add(request(2, 30))
        assert batcher.uncomputed_tokens == 30
        report = batcher.step()
        assert (report.num_decodes, report.num_prefill_tokens) == (1, 7)
        assert batcher.uncomputed_tokens == 23


class TestPrefix:
    def test_a_known_beginning_is_not_computed_again(self) -> None:
        batcher, executor = make_batcher()
        first = request(1, 13)
        again = replace(first, sequence_id="again")
        batcher.add(first)
        run_all(batcher)
        num_before = len(executor.batches)
        batcher.add(again)
        outcomes = run_all(batcher)
        assert sizes(executor.batches[num_before]) == [1]
        assert outcomes["again"].cached_tokens == 12
        assert_right(outcomes, again)
        assert batcher.counters.prefix_queries_tokens == 26
        assert batcher.counters.prefix_hit_tokens == 12
        assert batcher.counters.prompt_tokens == 26

    def test_one_token_is_left_to_compute(self) -> None:
        batcher, _ = make_batcher()
        for name in ("a", "b"):
            batcher.add(SequenceRequest(name, prompt(1, 12), max_tokens=1))
            outcomes = run_all(batcher)
        assert outcomes["b"].cached_tokens == 8  # 12 tokens fill 3 blocks of 4, but the last must give a token

    def test_generated_tokens_are_found_too(self) -> None:
        batcher, _ = make_batcher()
        first = request(1, 5, 20)
        batcher.add(first)
        answer = run_all(batcher)["s1"].token_ids
        follow_up = SequenceRequest("next", (*first.prompt_ids, *answer, 1, 2, 3), max_tokens=3)
        batcher.add(follow_up)
        outcomes = run_all(batcher)
        assert outcomes["next"].cached_tokens == 24  # 5 + 19 computed tokens: six blocks
        assert_right(outcomes, follow_up)

    def test_equal_prompts_at_the_same_time_end_up_in_the_same_blocks(self) -> None:
        batcher, _ = make_batcher(step_tokens=64)
        twins = [SequenceRequest(name, prompt(1, 17), max_tokens=3) for name in ("a", "b", "c")]
        for each in twins:
            batcher.add(each)
        outcomes = Outcomes()
        outcomes.add(batcher.step())
        batcher.check()
        assert batcher.pool.num_blocks - batcher.pool.num_free == 4 + 3  # four full ones shared, a last one each
        run_all(batcher, outcomes)
        for each in twins:
            assert_right(outcomes, each)

    def test_no_tenant_finds_what_another_one_has_sent(self) -> None:
        batcher, _ = make_batcher()
        cached: list[int | None] = []
        for number, salt in enumerate((b"a", b"b", b"", b"a", b"b", b"")):
            each = SequenceRequest(f"s{number}", prompt(1, 13), max_tokens=4, cache_salt=salt)
            batcher.add(each)
            outcomes = run_all(batcher)
            assert_right(outcomes, each)
            cached.append(outcomes[each.sequence_id].cached_tokens)
        assert cached == [0, 0, 0, 12, 12, 12]

    def test_tenants_at_the_same_time_share_no_block(self) -> None:
        batcher, _ = make_batcher(step_tokens=64)
        for salt in (b"a", b"b"):
            batcher.add(SequenceRequest(salt.hex(), prompt(1, 17), max_tokens=3, cache_salt=salt))
        outcomes = Outcomes()
        outcomes.add(batcher.step())
        batcher.check()
        assert batcher.pool.num_blocks - batcher.pool.num_free == 2 * 5
        run_all(batcher, outcomes)

    def test_can_be_turned_off(self) -> None:
        batcher, executor = make_batcher(prefix_cache=False)
        for name in ("a", "b"):
            batcher.add(SequenceRequest(name, prompt(1, 13), max_tokens=1))
            outcomes = run_all(batcher)
        assert outcomes["b"].cached_tokens == 0
        assert [sizes(each) for each in executor.batches] == [[13], [13]]
        assert batcher.counters.prefix_queries_tokens == 0


class TestPreemption:
    def test_the_newest_gives_way_and_still_ends_right(self) -> None:
        batcher, _ = make_batcher(num_blocks=8, max_sequences=4, step_tokens=16, prefix_cache=False)
        requests = [request(number, 4, 24) for number in range(3)]
        for each in requests:
            batcher.add(each)
        outcomes = Outcomes()
        while not batcher.counters.preemptions:
            outcomes.add(batcher.step())
            batcher.check()
        assert [each.request.sequence_id for each in batcher.ledger.waiting] == ["s2"]
        run_all(batcher, outcomes)
        for each in requests:
            assert_right(outcomes, each, context_length=32)

    def test_the_lowest_priority_gives_way_before_the_newest(self) -> None:
        batcher, _ = make_batcher(num_blocks=8, max_sequences=4, step_tokens=16)
        requests = [request(number, 4, 24, priority=priority) for number, priority in enumerate((0, -1, 0))]
        for each in requests:
            batcher.add(each)
        outcomes = Outcomes()
        while not batcher.counters.preemptions:
            outcomes.add(batcher.step())
        assert [each.request.sequence_id for each in batcher.ledger.waiting] == ["s1"]
        run_all(batcher, outcomes)
        for each in requests:
            assert_right(outcomes, each, context_length=32)

    def test_a_sequence_may_take_the_whole_pool(self) -> None:
        batcher, _ = make_batcher(num_blocks=4, max_sequences=4, step_tokens=16)
        greedy, other = request(1, 4, 100), request(2, 4, 100)
        batcher.add(greedy)
        batcher.add(other)
        outcomes = run_all(batcher)
        assert batcher.counters.preemptions >= 1
        assert_right(outcomes, greedy, context_length=16)
        assert_right(outcomes, other, context_length=16)

    def test_what_never_fits_is_refused(self) -> None:
        batcher, executor = make_batcher(num_blocks=4)
        with pytest.raises(FieldError, match="prompt_ids: must be 1 to 15 tokens with those generated, not 16"):
            batcher.add(request(1, 16))
        batcher.add(request(2, 16, pooling=Pooling.LAST))  # nothing is generated: the last place may be used
        assert run_all(batcher)["s2"].finish_reason is FinishReason.STOP
        with pytest.raises(ValueError, match="does not fit a KV pool of 16"):
            over(executor, BatchLimits(max_sequences=1, step_tokens=8, context_length=17), 4)
        with pytest.raises(ValueError, match="too few for 8 sequences"):
            over(executor, BatchLimits(max_sequences=8, step_tokens=8, context_length=16), 4)


def test_a_static_cache_runs_as_many_sequences_as_it_has_blocks() -> None:
    """A block that holds a whole context never has to grow: none is kept back."""
    batcher, executor = make_batcher(num_blocks=4, block_size=64, max_sequences=4, step_tokens=64, context_length=64)
    for number in range(4):
        batcher.add(request(number, 5, 10))
    run_all(batcher)
    assert len(executor.batches[0].slices) == 4
    assert batcher.counters.preemptions == 0


class TestEnds:
    def test_stop_tokens_are_not_returned(self) -> None:
        plain = request(1, 5, 20)
        stop = expected_tokens(plain, 256)[0][7]
        stopped = replace(plain, stop_token_ids=(stop,))
        batcher, _ = make_batcher()
        batcher.add(stopped)
        outcome = run_all(batcher)["s1"]
        assert outcome.finish_reason is FinishReason.STOP
        assert stop not in outcome.token_ids
        assert batcher.counters.generated_tokens == len(outcome.token_ids)

    def test_resuming_goes_on_where_another_stopped(self) -> None:
        whole = request(1, 9, 12)
        token_ids, _ = expected_tokens(whole, 256)
        for cut in (1, 5, 11):
            batcher, executor = make_batcher(step_tokens=8, max_sequences=4)
            batcher.add(
                replace(
                    whole, sampling=replace(whole.sampling, presence_penalty=1.0), generated_ids=tuple(token_ids[:cut])
                )
            )
            outcome = run_all(batcher)["s1"]
            assert outcome.token_ids == token_ids[cut:]
            assert outcome.finish_reason is FinishReason.LENGTH
            last = executor.batches[-1].slices[0]
            assert (last.draw, last.length) == (True, len(whole.prompt_ids) + len(token_ids) - 1)
            (start,) = executor.starts
            assert (start.prompt_ids, start.generated_ids) == (whole.prompt_ids, tuple(token_ids[:cut]))

    def test_cancelling_frees_blocks_at_once(self) -> None:
        batcher, _ = make_batcher(step_tokens=8, max_sequences=2)
        for number in range(4):
            batcher.add(request(number, 20))
        batcher.step()
        for number in range(4):
            assert batcher.cancel(f"s{number}")
            batcher.check()
        assert batcher.pool.num_free == batcher.pool.num_blocks
        assert not batcher.cancel("s0")
        assert batcher.step().updates == []
        assert (batcher.ledger.admitted, batcher.ledger.cancelled, len(batcher.ledger)) == (4, 4, 0)

    def test_ids_are_free_again_after_the_end(self) -> None:
        batcher, _ = make_batcher()
        batcher.add(request(1))
        with pytest.raises(FieldError, match="sequence_id: is in use"):
            batcher.add(request(1))
        run_all(batcher)
        batcher.add(request(1))
        run_all(batcher)

    def test_queue_time_runs_from_arrival_to_the_first_step(self) -> None:
        now = [10.0]
        batcher, _ = make_batcher(max_sequences=1, clock=lambda: now[0])
        batcher.add(request(1, 3, 2))
        batcher.add(request(2, 3, 1))
        outcomes = Outcomes()
        for _ in range(3):
            outcomes.add(batcher.step())
            now[0] += 1.5
        assert outcomes["s1"].queue_seconds == 0.0
        assert outcomes["s2"].queue_seconds == 3.0


def test_the_fake_executor_notices_a_wrong_block() -> None:
    batcher, executor = make_batcher(num_blocks=8, block_size=2)
    wrong = request(1, 5, 4)
    batcher.add(wrong)
    outcomes = Outcomes()
    outcomes.add(batcher.step())
    table = executor._tables[0].copy()
    executor._tables[0, :2] = table[1::-1]
    with pytest.raises(AssertionError):
        assert_right(run_all(batcher, outcomes), wrong, context_length=16)
