"""The eager executor: results beside their sequences, faults that stay with them, and steps planned ahead."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.eager_models import POISON, SHAPE, poison, tiny_model, workload
from tests.support.stepping import Driver
from tests.support.tiny_models import write_folder

from polyfleet.engine.executor import DeviceTimeout, Fault, StepTooLarge
from polyfleet.executors import eager
from polyfleet.executors.eager import EagerExecutor
from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel
from polyfleet.wire.answers import SampledToken
from polyfleet.wire.requests import Pooling
from polyfleet.wire.sampling import SamplingParams


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return tiny_model(tmp_path_factory.mktemp("eager") / "model")


@pytest.fixture(scope="module")
def poisoned(model: LoadedModel) -> LoadedModel:
    return poison(model)


def driver(model: LoadedModel, num_blocks: int = 8, block_size: int = 4, depth: int = 1) -> Driver:
    return Driver(EagerExecutor(workload(model), depth=depth), num_blocks, block_size)


def greedy_ids(model: LoadedModel, prompt: list[int], number: int, block_size: int = 4) -> list[int]:
    alone = driver(model, block_size=block_size)
    return alone.generate(alone.begin(prompt, room=number), number)


@pytest.mark.parametrize("depth", [1, 2])
def test_results_are_parallel_to_sequences(model: LoadedModel, depth: int) -> None:
    steps = driver(model, 12, depth=depth)
    nothing = steps.begin([1, 2, 9], draws=False)
    token = steps.begin([3])
    pooled = steps.begin([4, 5, 6], pooling=Pooling.LAST)
    logprobs = steps.begin([7, 8], params=SamplingParams(seed=1), num_logprobs=2)
    steps.step([(nothing, 2), (token, 1), (pooled, 3), (logprobs, 2)])
    assert nothing.results[0].token is None
    assert nothing.results[0].pooled is None
    assert token.results[0].token is not None
    assert pooled.results[0].token is None
    assert pooled.results[0].pooled is not None
    assert len(pooled.results[0].pooled) == 64
    assert logprobs.results[0].token is not None
    assert len(logprobs.results[0].token.top_ids) == 2
    assert all(run.results[0].fault is Fault.NONE for run in (nothing, token, pooled, logprobs))


def test_a_step_that_draws_nothing(model: LoadedModel) -> None:
    steps = driver(model, 4)
    run = steps.begin([1, 2, 3], draws=False)
    steps.step([(run, 3)])
    assert run.results[0].token is None


def test_every_op_names_its_implementation(model: LoadedModel) -> None:
    chosen = EagerExecutor(workload(model)).implementations()
    assert chosen["paged_attention"] == "sdpa"
    assert chosen["embedding"] == "reference"
    assert len(chosen) == 8


def test_progress_follows_the_weights(model: LoadedModel) -> None:
    shares: list[float] = []
    EagerExecutor.build(workload(model), shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


@pytest.mark.parametrize("depth", [1, 2])
def test_only_the_sequence_that_is_not_finite_fails(model: LoadedModel, poisoned: LoadedModel, depth: int) -> None:
    good = greedy_ids(model, [1, 2, 3], 1)
    steps = driver(poisoned, depth=depth)
    failed, fine = steps.begin([POISON]), steps.begin([1, 2, 3])
    failed_pool, fine_pool = (steps.begin(ids, pooling=Pooling.MEAN) for ids in ([4, POISON], [4, 5]))
    chunk = steps.begin([POISON, 5, 6], draws=False)
    steps.step([(failed, 1), (fine, 3), (failed_pool, 2), (fine_pool, 2), (chunk, 2)])
    assert all(run.results[0].fault is Fault.NOT_FINITE for run in (failed, failed_pool, chunk))
    assert fine.results[0].fault is fine_pool.results[0].fault is Fault.NONE
    assert fine.results[0].token == SampledToken(good[0])
    assert fine_pool.results[0].pooled is not None
    assert np.isfinite(fine_pool.results[0].pooled).all()


def test_blocks_of_a_failed_sequence_do_not_harm_their_next_owner(model: LoadedModel, poisoned: LoadedModel) -> None:
    """The next owner writes over the first places of a block only; the rest is masked, which NaN would break."""
    expected = greedy_ids(model, [1, 2, 3], 6, block_size=16)
    steps = driver(poisoned, block_size=16)
    poison = steps.begin([1] * 9 + [POISON] * 6, blocks=[3])
    steps.step([(poison, 15)])
    assert poison.results[0].fault is Fault.NOT_FINITE
    steps.end(poison, keep_blocks=True)
    steps.assembler.clear([3])
    run, ids = steps.begin([1, 2, 3], blocks=[3]), []
    for _ in range(6):  # beside another sequence, so that decodes are padded and masked
        steps.step([(run, 3), (steps.begin([9], blocks=[1]), 1)])
        result = run.results[-1]
        assert result.fault is Fault.NONE
        assert result.token is not None
        ids.append(result.token.token_id)
        run.append(ids[-1])
    assert ids == expected


def test_sampled_tokens_do_not_depend_on_the_batch(model: LoadedModel) -> None:
    prompts = [[number, 5, number + 3] for number in range(8)]
    params = [SamplingParams(seed=number, temperature=1.3) for number in range(8)]
    steps = driver(model, 32)
    together = [steps.begin(ids, params=each) for ids, each in zip(prompts, params, strict=True)]
    steps.step([(run, 3) for run in together])
    alone = [steps.begin(ids, params=each) for ids, each in zip(prompts, params, strict=True)]
    for run in alone:
        steps.step([(run, 3)])
    assert [run.results[0].token for run in together] == [run.results[0].token for run in alone]


def test_the_model_may_come_from_any_path(tmp_path: Path, model: LoadedModel) -> None:
    """Weights stay usable when the file is gone, as they are mapped or copied."""
    folder = write_folder(tmp_path / "model", SHAPE)
    loaded = load_model(folder)
    (folder / "model.safetensors").unlink()
    assert greedy_ids(loaded, [1, 2], 3) == greedy_ids(model, [1, 2], 3)


def test_more_rows_than_there_is_room_for_are_refused_before_anything_is_done(model: LoadedModel) -> None:
    executor = EagerExecutor(workload(model))
    steps = Driver(executor, 8, 4, step_tokens=6)
    run = steps.begin(range(1, 8))
    plan = steps.assembler.assemble([run.next_piece(7)])
    with pytest.raises(StepTooLarge, match="room for 6 rows, not for 7"):
        executor.launch(plan)
    assert not any(cache.any() for cache in executor._storage.caches)


def test_no_memory_is_a_memory_error(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object) -> None:
        raise torch.OutOfMemoryError("out of memory. Tried to allocate 9 GiB.\nand more")

    steps = driver(model)
    run = steps.begin([1, 2])
    plan = steps.assembler.assemble([run.next_piece(2)])
    monkeypatch.setattr(steps.executor._sampler, "draw", exhausted)  # type: ignore[attr-defined]
    pending = steps.executor.launch(plan)
    with pytest.raises(MemoryError, match=r"Tried to allocate 9 GiB\.$"):
        steps.executor.draw(pending)
    monkeypatch.setattr(steps.executor._programs[False, False], "run", exhausted)  # type: ignore[attr-defined]
    with pytest.raises(MemoryError, match=r"Tried to allocate 9 GiB\.$"):
        steps.executor.launch(plan)


class Never:
    """An event that does not come."""

    def query(self) -> bool:
        return False


def test_a_device_that_hangs_is_given_up(model: LoadedModel) -> None:
    steps = driver(model)
    run = steps.begin([1, 2])
    pending = steps.executor.launch(steps.assembler.assemble([run.next_piece(2)]))
    steps.executor.draw(pending)
    pending.done = Never()  # type: ignore[attr-defined]
    with pytest.raises(DeviceTimeout, match=r"did not finish a step within 0\.01 s"):
        steps.executor.collect(pending, 0.01)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_blocks_travel_from_one_executor_to_another(model: LoadedModel, dtype: str) -> None:
    prompt, block_size = list(range(1, 11)), 4
    here, there = (Driver(EagerExecutor(workload(model, dtype)), 8, block_size) for _ in range(2))
    run = here.begin(prompt, room=5, blocks=[5, 2, 7, 0])
    expected = here.generate(run, 5)
    caches = here.executor.export_blocks([5, 2])
    assert [each.shape for each in caches] == [(2, 8, 2, 16)] * 2
    assert {each.dtype for each in caches} == {np.dtype("float32" if dtype == "float32" else "uint16")}
    other = there.begin(prompt, room=5, blocks=[1, 6, 3, 4])
    there.executor.import_blocks([1, 6], caches)
    other.sequence.num_computed = 8
    assert there.generate(other, 5) == expected
    assert [each.tolist() for each in there.executor.export_blocks([1, 6])] == [each.tolist() for each in caches]


def test_an_estimate_counts_weights_and_cache_in_the_computing_dtype(model: LoadedModel) -> None:
    count = sum(weight.rows * weight.columns for weight in model.weights.values())
    for dtype, size in (("float32", 4), ("bfloat16", 2)):
        footprint = EagerExecutor.footprint(workload(model, dtype))
        assert (footprint.weights, footprint.kv_per_token) == (count * size, 2 * 2 * 2 * 16 * size)
    executor = EagerExecutor(workload(model, step_tokens=64, max_sequences=4))
    assert executor.measure() == EagerExecutor.footprint(workload(model, step_tokens=64, max_sequences=4))


def test_what_is_allocated_is_measured_where_torch_counts_it(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Books:
        """As torch.cuda keeps them: 1,000 bytes are taken by others, 500 by the profile's cache."""

        allocated = iter([1_000, 6_000, 6_500])  # before the weights, behind them, behind `allocate`

        def memory_allocated(self, device: object) -> int:
            return next(self.allocated)

        def max_memory_allocated(self, device: object) -> int:
            return 7_200

        def reset_peak_memory_stats(self, device: object) -> None:
            pass

        def empty_cache(self) -> None:
            pass

    books = Books()
    monkeypatch.setattr(eager, "statistics", lambda device: books)
    found = EagerExecutor(workload(model, step_tokens=40, max_sequences=4)).measure()
    assert (found.weights, found.workspace) == (5_000, 700)


def test_an_export_of_nothing_tells_shape_and_dtype(model: LoadedModel) -> None:
    for dtype, stored in (("float32", "float32"), ("bfloat16", "uint16")):
        steps = Driver(EagerExecutor(workload(model, dtype)), 4, 4)
        found = steps.executor.export_blocks([])
        assert [(each.shape, each.dtype) for each in found] == [((2, 0, 2, 16), np.dtype(stored))] * 2


@pytest.mark.parametrize("adapters", [0, 2])
def test_weights_are_let_go_one_after_the_other_where_each_is_read_once(model: LoadedModel, adapters: int) -> None:
    weights, gone, counts = dict(model.weights), list[str](), list[int]()

    def spent(name: str) -> None:
        gone.append(name)
        weights[name] = replace(weights[name], data=torch.empty(0))

    task = replace(workload(model, max_adapters=adapters), weights=weights, spent=spent)
    executor = EagerExecutor(task, lambda share: counts.append(len(gone)))
    if adapters:
        assert not gone, "programs with adapters read them again"
        return
    assert set(gone) == set(model.weights)
    assert counts[len(counts) // 2] > len(model.weights) // 3, "not all at the end"
    steps = Driver(executor, 8, 4)  # which binds anew
    assert steps.generate(steps.begin([5, 6, 7], room=9), 9) == greedy_ids(model, [5, 6, 7], 9)
