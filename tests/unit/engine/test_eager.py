"""The eager executor: steps, results beside their slices, errors that stay with their sequence."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.support.stepping import GREEDY
from tests.support.tiny_models import TinyShape, write_folder

from polyfleet.engine.batch import PoolingKind, SequenceSlice, StepBatch
from polyfleet.engine.eager import NOT_FINITE, EagerExecutor, make_step
from polyfleet.kernels.weights import Weight
from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel
from polyfleet.sampling.draw import Draw
from polyfleet.wire.sampling import SamplingParams

POISON = 90  # a token whose embedding is not finite
DRAW = Draw(GREEDY)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(write_folder(tmp_path_factory.mktemp("eager") / "model", TinyShape()))


@pytest.fixture(scope="module")
def poisoned(model: LoadedModel) -> LoadedModel:
    embedding = model.weights["embedding"]
    data = embedding.data.clone()
    data[POISON] = float("nan")
    weight = Weight("embedding", embedding.format, embedding.rows, embedding.columns, data)
    return replace(model, weights={**model.weights, "embedding": weight})


def greedy_ids(executor: EagerExecutor, prompt: list[int], table: list[int], number: int) -> list[int]:
    ids = list(prompt)
    computed = 0
    for _ in range(number):
        result = executor.step(StepBatch((SequenceSlice(ids[computed:], computed, table, DRAW),)))[0]
        assert result.token is not None
        computed = len(ids)
        ids.append(result.token.token_id)
    return ids[len(prompt) :]


def test_make_step_lays_out_rows() -> None:
    slices = (
        SequenceSlice([7], 5, [3, 9, 1], DRAW),
        SequenceSlice([1, 2, 3], 3, [4, 0, 8]),
        SequenceSlice([5, 6], 0, [2], DRAW),
    )
    step = make_step(StepBatch(slices), 4, torch.device("cpu"))
    assert step.token_ids.tolist() == [7, 1, 2, 3, 5, 6]
    assert step.positions.tolist() == [5, 3, 4, 5, 0, 1]
    assert step.slots.tolist() == [9 * 4 + 1, 4 * 4 + 3, 0 * 4 + 0, 0 * 4 + 1, 2 * 4, 2 * 4 + 1]
    assert step.selected.tolist() == [0, 5]
    assert [(each.first, each.count, each.start, each.blocks) for each in step.slices] == [
        (0, 1, 5, (3, 9)),
        (1, 3, 3, (4, 0)),
        (4, 2, 0, (2,)),
    ]


def test_results_are_parallel_to_slices(model: LoadedModel) -> None:
    executor = EagerExecutor(model, num_blocks=12, block_size=4)
    sampled = Draw(SamplingParams(seed=1), num_logprobs=2)
    batch = StepBatch(
        (
            SequenceSlice([1, 2], 0, [0], None),
            SequenceSlice([3], 0, [1], DRAW),
            SequenceSlice([4, 5, 6], 0, [2], pooling=PoolingKind.LAST),
            SequenceSlice([7, 8], 0, [3], sampled),
        )
    )
    nothing, token, pooled, logprobs = executor.step(batch)
    assert nothing.token is None
    assert nothing.pooled == ()
    assert token.token is not None
    assert pooled.token is None
    assert len(pooled.pooled) == 64
    assert logprobs.token is not None
    assert len(logprobs.token.top_ids) == 2
    assert all(not each.error for each in (nothing, token, pooled, logprobs))


def test_a_step_that_draws_nothing(model: LoadedModel) -> None:
    executor = EagerExecutor(model, num_blocks=4, block_size=4)
    assert executor.step(StepBatch((SequenceSlice([1, 2, 3], 0, [2]),)))[0].token is None


def test_every_op_names_its_implementation(model: LoadedModel) -> None:
    chosen = EagerExecutor(model, num_blocks=1).implementations()
    assert chosen["paged_attention"] == "sdpa"
    assert chosen["embedding"] == "reference"
    assert len(chosen) == 8


def test_progress_follows_the_weights(model: LoadedModel) -> None:
    shares: list[float] = []
    EagerExecutor(model, num_blocks=1, progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_only_the_sequence_that_is_not_finite_fails(model: LoadedModel, poisoned: LoadedModel) -> None:
    good = greedy_ids(EagerExecutor(model, num_blocks=8, block_size=4), [1, 2, 3], [5, 6], 1)
    executor = EagerExecutor(poisoned, num_blocks=8, block_size=4)
    batch = StepBatch(
        (
            SequenceSlice([POISON], 0, [0], DRAW),
            SequenceSlice([1, 2, 3], 0, [1, 2], DRAW),
            SequenceSlice([4, POISON], 0, [3], pooling=PoolingKind.MEAN),
            SequenceSlice([4, 5], 0, [4], pooling=PoolingKind.MEAN),
        )
    )
    failed, fine, failed_pool, fine_pool = executor.step(batch)
    assert failed.error == failed_pool.error == NOT_FINITE
    assert failed.token is None
    assert failed_pool.pooled == ()
    assert fine.token is not None
    assert [fine.token.token_id] == good
    assert len(fine_pool.pooled) == 64


def test_blocks_of_a_failed_sequence_do_not_harm_their_next_owner(model: LoadedModel, poisoned: LoadedModel) -> None:
    """The next owner writes over the first places of a block only; the rest is masked, which NaN would break."""
    expected = greedy_ids(EagerExecutor(model, num_blocks=8, block_size=16), [1, 2, 3], [3], 6)
    executor = EagerExecutor(poisoned, num_blocks=8, block_size=16)
    poison = SequenceSlice([1] * 9 + [POISON] * 6, 0, [3], DRAW)
    assert executor.step(StepBatch((poison,)))[0].error
    other = SequenceSlice([9], 0, [1], DRAW)
    ids, computed = [1, 2, 3], 0
    for _ in range(6):  # beside another sequence, so that decodes are padded and masked
        result = executor.step(StepBatch((SequenceSlice(ids[computed:], computed, [3], DRAW), other)))[0]
        assert result.token is not None
        computed = len(ids)
        ids.append(result.token.token_id)
    assert ids[3:] == expected


def test_sampled_tokens_do_not_depend_on_the_batch(model: LoadedModel) -> None:
    executor = EagerExecutor(model, num_blocks=32, block_size=4)
    prompts = [[number, 5, number + 3] for number in range(8)]
    draws = [Draw.behind(prompts[number], (), SamplingParams(seed=number, temperature=1.3)) for number in range(8)]
    slices = [SequenceSlice(prompts[number], 0, [number], draws[number]) for number in range(8)]
    together = [result.token for result in executor.step(StepBatch(tuple(slices)))]
    alone = [executor.step(StepBatch((each,)))[0].token for each in slices]
    assert together == alone


def test_the_model_may_come_from_any_path(tmp_path: Path, model: LoadedModel) -> None:
    """Weights stay usable when the file is gone, as they are mapped or copied."""
    folder = write_folder(tmp_path / "model", TinyShape())
    loaded = load_model(folder)
    (folder / "model.safetensors").unlink()
    assert greedy_ids(EagerExecutor(loaded, num_blocks=4), [1, 2], [0], 3) == greedy_ids(
        EagerExecutor(model, num_blocks=4), [1, 2], [0], 3
    )
