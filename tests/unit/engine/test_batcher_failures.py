"""Batcher: embeddings, and what happens when an executor, a slice or the user breaks a step."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.support.batching import Outcomes, assert_right, make_batcher, over, prompt, request, run_all
from tests.support.fake_executor import VOCABULARY, FakeExecutor, pooled

from polyfleet.engine.batching.batch import BatchLimits
from polyfleet.engine.executor import FAULTS, Fault, Pending, StepOutput
from polyfleet.wire.answers import FinishReason
from polyfleet.wire.requests import Pooling, SequenceRequest


class TestEmbeddings:
    def test_mean_covers_every_token_in_chunks_and_after_a_cached_twin(self) -> None:
        batcher, executor = make_batcher(step_tokens=8, max_sequences=4)
        token_ids = prompt(3, 21)
        batcher.add(SequenceRequest("text", token_ids, max_tokens=1))
        run_all(batcher)
        batcher.add(SequenceRequest("mean", token_ids, pooling=Pooling.MEAN))
        outcome = run_all(batcher)["mean"]
        assert outcome.embedding == tuple(value / 21 for value in pooled(Pooling.MEAN, token_ids))
        assert (outcome.token_ids, outcome.finish_reason, outcome.cached_tokens) == ([], FinishReason.STOP, 0)
        slices = [each for batch in executor.batches[-3:] for each in batch.slices]
        assert [len(each.token_ids) for each in slices] == [8, 8, 5]
        assert all(not each.draw and each.pooling is Pooling.MEAN for each in slices)

    def test_last_reads_the_prefix_and_pools_once(self) -> None:
        batcher, executor = make_batcher(step_tokens=8, max_sequences=4)
        token_ids = prompt(3, 21)
        for name in ("first", "second"):
            batcher.add(SequenceRequest(name, token_ids, pooling=Pooling.LAST))
            outcomes = run_all(batcher)
            assert outcomes[name].embedding == pooled(Pooling.LAST, token_ids)
        assert outcomes["second"].cached_tokens == 20
        assert [each.slices[0].pooling for each in executor.batches] == [None, None, Pooling.LAST, Pooling.LAST]

    def test_a_preempted_embedding_starts_over(self) -> None:
        batcher, _ = make_batcher(num_blocks=8, max_sequences=2, step_tokens=3)
        text = request(1, 11, 20)
        batcher.add(text)
        outcomes = Outcomes()
        while not outcomes:
            outcomes.add(batcher.step())
        token_ids = prompt(2, 14)
        batcher.add(SequenceRequest("mean", token_ids, pooling=Pooling.MEAN, priority=-1))
        run_all(batcher, outcomes)
        assert batcher.counters.preemptions == 1
        assert outcomes["mean"].embedding == tuple(value / 14 for value in pooled(Pooling.MEAN, token_ids))
        assert_right(outcomes, text, context_length=32)


class TestErrors:
    @pytest.mark.parametrize("call", ["launch", "draw", "collect"])
    def test_an_executor_that_raises_fails_its_step_alone(self, call: str) -> None:
        batcher, executor = make_batcher(max_sequences=2, step_tokens=32)
        requests = [request(number) for number in range(4)]
        for each in requests:
            batcher.add(each)
        executor.failure, executor.fails_in = RuntimeError("no memory\nand a long story"), call
        outcomes = Outcomes()
        outcomes.add(batcher.step())
        batcher.check()
        wanted = "the engine could not compute a step: RuntimeError: no memory"
        assert [(key, each.error) for key, each in outcomes.items()] == [("s0", wanted), ("s1", wanted)]
        run_all(batcher, outcomes)
        assert_right(outcomes, requests[2])
        assert_right(outcomes, requests[3])
        assert (batcher.ledger.failed, batcher.ledger.finished) == (2, 2)

    def test_a_failed_step_teaches_nothing_and_caches_nothing(self) -> None:
        batcher, executor = make_batcher()
        executor.failure = OSError()
        batcher.add(request(1, 13))
        report = batcher.step()
        assert (report.num_decodes, report.num_prefill_tokens) == (0, 0)
        assert report.updates[0].error == "the engine could not compute a step: OSError"
        assert report.updates[0].broken  # another worker can go on with it
        assert len(batcher.prefixes) == 0

    def test_a_slice_that_fails_fails_one_sequence(self) -> None:
        batcher, executor = make_batcher()
        requests = [request(number) for number in range(3)]
        for each in requests:
            batcher.add(each)
        executor.fault = True
        outcomes = run_all(batcher)
        assert outcomes["s0"].error == FAULTS[Fault.NOT_FINITE]
        assert_right(outcomes, requests[1])
        assert_right(outcomes, requests[2])

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            (
                {"token_ids": np.zeros(0, dtype=np.int64)},
                "returned (0, 1, 0) tokens, faults and pooled rows instead of (1, 1, 0)",
            ),
            ({"token_ids": np.array([-1])}, f"the executor drew tokens -1 to -1 of {VOCABULARY}"),
            ({"token_ids": np.array([VOCABULARY])}, f"drew tokens {VOCABULARY} to {VOCABULARY} of {VOCABULARY}"),
            ({"faults": np.array([9], dtype=np.int8)}, "the executor reported a fault that there is not"),
        ],
    )
    def test_results_that_do_not_fit_the_batch_are_an_error(self, changes: dict[str, Any], reason: str) -> None:
        class OddExecutor(FakeExecutor):
            def collect(self, pending: Pending, timeout: float) -> StepOutput:
                return replace(super().collect(pending, timeout), **changes)

        batcher = over(OddExecutor(), BatchLimits(2, 8, 64, vocabulary_size=VOCABULARY))
        batcher.add(request(1))
        assert reason in batcher.step().updates[0].error
        batcher.check()

    def test_an_interrupt_passes_and_leaves_everything_in_place(self) -> None:
        batcher, executor = make_batcher()
        batcher.add(request(1))
        executor.failure = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            batcher.step()
        batcher.check()
        assert_right(run_all(batcher), request(1))
