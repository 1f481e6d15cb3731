"""PersistentKernel against EagerExecutor in float32: the same logits, tokens, logprobs, pooling and errors."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.support.cpu_graphs import available_sets, needs_library
from tests.support.stepping import GREEDY, Run, Tables, logprob_draw, logprobs_of, step
from tests.support.tiny_models import TinyShape, write_folder

from polyfleet.engine.batch import Executor, PoolingKind, SequenceSlice, StepBatch
from polyfleet.engine.eager import NOT_FINITE, EagerExecutor
from polyfleet.engine.persistent import PersistentKernel
from polyfleet.kernels.weights import Weight, WeightFormat
from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel
from polyfleet.models.registry import record
from polyfleet.sampling.draw import Draw
from polyfleet.wire.sampling import SamplingParams

pytestmark = [needs_library, pytest.mark.parametrize("instruction_set", available_sets())]

VOCABULARY = 96
POISON = 90  # a token whose embedding is not finite
DRAW = Draw(GREEDY)

SHAPES: Mapping[str, TinyShape] = {
    "grouped": TinyShape(),
    "tied": TinyShape(tied=True),
    "biased": TinyShape(attention_bias=True, mlp_bias=True),
    "odd": TinyShape(hidden=60, heads=3, kv_heads=3, head_dim=20, intermediate=50),
    "wide": TinyShape(heads=6, kv_heads=2, head_dim=64, intermediate=160, layers=3),
}
DTYPES = {WeightFormat.F32: torch.float32, WeightFormat.F16: torch.float16, WeightFormat.BF16: torch.bfloat16}
# Root mean square difference of logprobs, in their standard deviations. With dense weights, keys and values in half
# precision make it; with quantised ones int8 rows; with bfloat16 ones bfloat16 rows, where the processor wants these.
DENSE_TOLERANCE, ROUNDED_TOLERANCE = 0.004, 0.08


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, LoadedModel]:
    folder = tmp_path_factory.mktemp("models")
    return {name: load_model(write_folder(folder / name, shape)) for name, shape in SHAPES.items()}


def in_format(model: LoadedModel, form: WeightFormat) -> LoadedModel:
    """The same model with its matrices in another format."""

    def convert(weight: Weight) -> Weight:
        if weight.rows == 1:
            return weight
        if form is WeightFormat.Q8_0:
            blocks = weight.data.reshape(weight.rows, -1, 32)
            scales = (blocks.abs().amax(-1, keepdim=True) / 127).half()
            codes = (blocks / scales.float()).round().clamp(-127, 127).to(torch.int8)
            data = torch.cat((scales.view(torch.uint8), codes.view(torch.uint8)), dim=-1).flatten(1)
        else:
            data = weight.data.to(
                {WeightFormat.F32: torch.float32, WeightFormat.F16: torch.float16}.get(form, torch.bfloat16)
            )
        return replace(weight, format=form, data=data)

    return replace(model, weights={name: convert(weight) for name, weight in model.weights.items()})


def persistent(model: LoadedModel, instruction_set: str, *, num_blocks: int, block_size: int = 16) -> PersistentKernel:
    return PersistentKernel(
        record(model.config, model.weights),
        weights=model.weights,
        num_blocks=num_blocks,
        block_size=block_size,
        instruction_set=instruction_set,
    )


def all_logprobs(executor: Executor, chunks: list[list[int]], lengths: list[int]) -> list[NDArray[np.float64]]:
    """Sequences computed together in the given chunks; logprobs behind each chunk."""
    tables = Tables(executor)
    rng = np.random.default_rng(0)
    runs = [
        Run(rng.integers(3, 89, length).tolist(), tables.take(length), logprob_draw(VOCABULARY)) for length in lengths
    ]
    for sizes in chunks:
        step(executor, [(run, size) for run, size in zip(runs, sizes, strict=True) if size])
    assert all(run.done for run in runs)
    return [logprobs_of(result) for run in runs for result in run.results]


@pytest.mark.parametrize("form", [*DTYPES, WeightFormat.Q8_0])
@pytest.mark.parametrize("name", list(SHAPES))
def test_logits_of_chunks_and_mixed_batches(
    models: Mapping[str, LoadedModel], instruction_set: str, name: str, form: WeightFormat
) -> None:
    if form is WeightFormat.Q8_0 and name == "odd":
        pytest.skip("its columns are no multiple of 32")
    model = in_format(models[name], form)
    chunks = [[40, 1, 0, 7], [1, 1, 33, 1], [1, 20, 1, 1], [0, 1, 1, 0]]
    lengths = [sum(sizes) for sizes in zip(*chunks, strict=True)]
    ours = all_logprobs(persistent(model, instruction_set, num_blocks=40, block_size=4), chunks, lengths)
    theirs = all_logprobs(EagerExecutor(model, num_blocks=40, block_size=4), chunks, lengths)
    rounded = form.quantised or (form is WeightFormat.BF16 and instruction_set in ("avx512bf16", "amx"))
    tolerance = ROUNDED_TOLERANCE if rounded else DENSE_TOLERANCE
    for mine, other in zip(ours, theirs, strict=True):
        assert np.sqrt(np.mean((mine - other) ** 2)) < tolerance * other.std()


def test_tokens_do_not_depend_on_chunks_or_company(models: Mapping[str, LoadedModel], instruction_set: str) -> None:
    """Greedy tokens of a float32 model: alone, in chunks, beside others."""
    model = models["grouped"]
    executor = persistent(model, instruction_set, num_blocks=64, block_size=8)
    prompt = list(range(5, 60))

    def generate(first_chunk: int, company: int) -> list[int]:
        tables = Tables(executor, seed=company)
        table, ids, computed = tables.take(80), list(prompt), 0
        others = [SequenceSlice([7 + number], 0, tables.take(1)) for number in range(company)]
        while len(ids) < 75:
            upto = min(len(ids), computed + first_chunk)
            piece = SequenceSlice(ids[computed:upto], computed, table, DRAW)
            token = executor.step(StepBatch((*others, piece)))[-1].token
            assert token is not None
            computed = upto
            if computed == len(ids):
                ids.append(token.token_id)
        return ids[len(prompt) :]

    alone = generate(100, 0)
    assert generate(7, 0) == generate(100, 5) == generate(19, 20) == alone
    assert len(set(alone)) > 1


def test_results_are_those_of_the_eager_executor(models: Mapping[str, LoadedModel], instruction_set: str) -> None:
    sampled = Draw.behind((4, 5, 6), (), SamplingParams(seed=3, temperature=0.8, top_k=20))
    penalised = Draw.behind((7, 8), (8, 8), SamplingParams(temperature=0.0, repetition_penalty=1.9))
    batch = StepBatch(
        (
            SequenceSlice([1, 2], 0, [0], None),
            SequenceSlice([3], 0, [1], DRAW),
            SequenceSlice([4, 5, 6], 0, [2], sampled, pooling=PoolingKind.LAST),
            SequenceSlice([7, 8], 0, [3], penalised),
            SequenceSlice([9, 9, 9, 9], 0, [4], pooling=PoolingKind.MEAN),
            SequenceSlice([11, 12], 0, [5], Draw(GREEDY, num_logprobs=3)),
        )
    )
    model = models["grouped"]
    ours = persistent(model, instruction_set, num_blocks=8).step(batch)
    theirs = EagerExecutor(model, num_blocks=8).step(batch)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.error == other.error == ""
        assert (mine.token is None) == (other.token is None)
        np.testing.assert_allclose(mine.pooled, other.pooled, atol=2e-2)
        if mine.token is not None and other.token is not None:
            assert mine.token.token_id == other.token.token_id
            assert mine.token.top_ids == other.token.top_ids
            np.testing.assert_allclose(mine.token.logprob, other.token.logprob, atol=5e-3)
            np.testing.assert_allclose(mine.token.top_logprobs, other.token.top_logprobs, atol=5e-3)


def test_a_step_that_draws_nothing(models: Mapping[str, LoadedModel], instruction_set: str) -> None:
    executor = persistent(models["grouped"], instruction_set, num_blocks=4)
    result = executor.step(StepBatch((SequenceSlice([1, 2, 3], 0, [2]),)))[0]
    assert (result.token, result.pooled, result.error) == (None, (), "")


def test_only_the_sequence_that_is_not_finite_fails(models: Mapping[str, LoadedModel], instruction_set: str) -> None:
    model = models["grouped"]
    embedding = model.weights["embedding"]
    data = embedding.data.clone()
    data[POISON] = float("nan")
    poisoned = replace(model, weights={**model.weights, "embedding": replace(embedding, data=data)})
    batch = StepBatch(
        (
            SequenceSlice([POISON], 0, [0], DRAW),
            SequenceSlice([1, 2, 3], 0, [1], DRAW),
            SequenceSlice([4, POISON], 0, [3], pooling=PoolingKind.MEAN),
            SequenceSlice([4, 5], 0, [4], pooling=PoolingKind.MEAN),
            SequenceSlice([POISON], 0, [5], Draw(SamplingParams(seed=1))),
        )
    )
    failed, fine, failed_pool, fine_pool, failed_draw = persistent(poisoned, instruction_set, num_blocks=8).step(batch)
    assert failed.error == failed_pool.error == failed_draw.error == NOT_FINITE
    assert failed.token is None
    assert failed_pool.pooled == ()
    assert fine.token == persistent(model, instruction_set, num_blocks=8).step(batch)[1].token
    assert len(fine_pool.pooled) == SHAPES["grouped"].hidden


def test_memory_of_the_weights_is_not_needed_afterwards(tmp_path: Path, instruction_set: str) -> None:
    """All but the embedding is packed: writing over the rest changes nothing."""
    model = load_model(write_folder(tmp_path / "model", TinyShape()))
    weights = {name: replace(weight, data=weight.data.clone()) for name, weight in model.weights.items()}
    executor = persistent(replace(model, weights=weights), instruction_set, num_blocks=4)
    piece = SequenceSlice([5, 6, 7], 0, [1], logprob_draw(VOCABULARY))
    before = logprobs_of(executor.step(StepBatch((piece,)))[0])
    for name, weight in weights.items():
        if name != "embedding" and weight.rows > 1:
            weight.data.zero_()
    np.testing.assert_array_equal(logprobs_of(executor.step(StepBatch((piece,)))[0]), before)
