"""PersistentExecutor against EagerExecutor in float32: the same logits, tokens, logprobs, pooling and errors."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.support.cpu_graphs import available_sets, needs_library
from tests.support.masking import sparse
from tests.support.stepping import Driver, logprobs_of
from tests.support.tiny_models import TinyShape, write_folder

from polyfleet.backends.protocol import KernelCapabilities
from polyfleet.engine.choosing.executors import Workload
from polyfleet.engine.executor import Executor, Fault
from polyfleet.executors.eager import EagerExecutor
from polyfleet.executors.persistent import PersistentExecutor
from polyfleet.kernels.weights.weight import Weight, WeightFormat
from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel
from polyfleet.models.registry import record
from polyfleet.sampling.masks import Masks
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import Pooling
from polyfleet.wire.sampling import SamplingParams

pytestmark = [needs_library, pytest.mark.parametrize("instruction_set", available_sets())]

VOCABULARY = 96
POISON = 90  # a token whose embedding is not finite
CPU = KernelCapabilities(frozenset({"float32"}), "float32", executors=("persistent", "eager"))

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


def workload(model: LoadedModel, options: EngineOptions | None = None) -> Workload:
    graph = record(model.config, model.weights)
    return Workload(graph, model.weights, options or EngineOptions(), "cpu", "float32", CPU)


def persistent(model: LoadedModel, instruction_set: str, *, num_blocks: int, block_size: int = 16) -> Driver:
    graph = record(model.config, model.weights)
    executor = PersistentExecutor(graph, model.weights, instruction_set=instruction_set)
    return Driver(executor, num_blocks, block_size)


def eager(model: LoadedModel, *, num_blocks: int, block_size: int = 16) -> Driver:
    return Driver(EagerExecutor(workload(model)), num_blocks, block_size)


def poisoned(model: LoadedModel) -> LoadedModel:
    """The same model with an embedding that is not finite."""
    embedding = model.weights["embedding"]
    data = embedding.data.clone()
    data[POISON] = float("nan")
    return replace(model, weights={**model.weights, "embedding": replace(embedding, data=data)})


def all_logprobs(driver: Driver, chunks: list[list[int]], lengths: list[int]) -> list[NDArray[np.float64]]:
    """Sequences computed together in the given chunks; logprobs behind each chunk."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, 89, length).tolist() for length in lengths]
    runs = [driver.begin(prompt, num_logprobs=VOCABULARY) for prompt in prompts]
    for sizes in chunks:
        driver.step([(run, size) for run, size in zip(runs, sizes, strict=True) if size])
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
    theirs = all_logprobs(eager(model, num_blocks=40, block_size=4), chunks, lengths)
    rounded = form.quantised or (form is WeightFormat.BF16 and instruction_set in ("avx512bf16", "amx"))
    tolerance = ROUNDED_TOLERANCE if rounded else DENSE_TOLERANCE
    for mine, other in zip(ours, theirs, strict=True):
        assert np.sqrt(np.mean((mine - other) ** 2)) < tolerance * other.std()


def test_tokens_do_not_depend_on_chunks_or_company(models: Mapping[str, LoadedModel], instruction_set: str) -> None:
    """Greedy tokens of a float32 model: alone, in chunks, beside others."""
    driver = persistent(models["grouped"], instruction_set, num_blocks=64, block_size=8)

    def generate(first_chunk: int, company: int) -> list[int]:
        run, found = driver.begin(range(5, 60), room=20), list[int]()
        while len(found) < 20:
            others = [driver.begin([7 + number], draws=False) for number in range(company)]
            driver.step([*((other, 1) for other in others), (run, first_chunk)])
            for other in others:
                driver.end(other)
            token = run.results[-1].token
            assert token is not None
            if run.done:
                found.append(token.token_id)
                run.append(token.token_id)
        driver.end(run)
        return found

    alone = generate(100, 0)
    assert generate(7, 0) == generate(100, 5) == generate(19, 20) == alone
    assert len(set(alone)) > 1


def test_results_are_those_of_the_eager_executor(models: Mapping[str, LoadedModel], instruction_set: str) -> None:
    sampled = SamplingParams(seed=3, temperature=0.8, top_k=20)
    penalised = SamplingParams(temperature=0.0, repetition_penalty=1.9)
    results = []
    for driver in (
        persistent(models["grouped"], instruction_set, num_blocks=8),
        eager(models["grouped"], num_blocks=8),
    ):
        runs = [
            driver.begin([1, 2], draws=False),
            driver.begin([3]),
            driver.begin([4, 5, 6], params=sampled),
            driver.begin([4, 5, 6], pooling=Pooling.LAST),
            driver.begin([7, 8], generated_ids=[8, 8], params=penalised),
            driver.begin([9, 9, 9, 9], pooling=Pooling.MEAN),
            driver.begin([11, 12], num_logprobs=3),
        ]
        driver.step([(run, 4) for run in runs])
        results.append([run.results[0] for run in runs])
    for mine, other in zip(*results, strict=True):
        assert mine.fault == other.fault == Fault.NONE
        assert (mine.token is None) == (other.token is None)
        assert (mine.pooled is None) == (other.pooled is None)
        if mine.pooled is not None:
            np.testing.assert_allclose(mine.pooled, other.pooled, atol=2e-2)
        if mine.token is not None and other.token is not None:
            assert mine.token.token_id == other.token.token_id
            assert mine.token.top_ids == other.token.top_ids
            np.testing.assert_allclose(mine.token.logprob, other.token.logprob, atol=5e-3)
            np.testing.assert_allclose(mine.token.top_logprobs, other.token.top_logprobs, atol=5e-3)
    assert [result.token is None for result in results[0]] == [True, False, False, True, False, True, False]


def test_a_step_that_draws_nothing(models: Mapping[str, LoadedModel], instruction_set: str) -> None:
    driver = persistent(models["grouped"], instruction_set, num_blocks=4)
    run = driver.begin([1, 2, 3], draws=False)
    output = driver.step([(run, 3)])
    assert (len(output.token_ids), output.pooled, output.logprobs, output.faults.tolist()) == (0, None, None, [0])


def test_masks_are_of_one_step(models: Mapping[str, LoadedModel], instruction_set: str) -> None:
    driver = persistent(models["grouped"], instruction_set, num_blocks=8)
    free, masked = (driver.begin([5, 6, 7], num_logprobs=1) for _ in range(2))
    allowed = np.ones((2, VOCABULARY), dtype=np.bool_)
    allowed[1] = False
    allowed[1, [40, 41]] = True
    driver.step([(free, 2), (masked, 2)], masks=sparse(allowed))
    driver.step([(free, 1), (masked, 1)])
    tokens = [[result.token.token_id for result in run.results if result.token] for run in (free, masked)]
    assert tokens[1][0] in (40, 41)
    assert tokens[0][0] not in (40, 41)
    assert tokens[0][1] == tokens[1][1]


def test_greedy_rows_take_their_biases(models: Mapping[str, LoadedModel], instruction_set: str) -> None:
    """Not what the library has found likeliest without them."""
    driver = persistent(models["grouped"], instruction_set, num_blocks=8)
    bias = {40: 100.0}
    free, biased = driver.begin([5, 6, 7]), driver.begin([5, 6, 7], logit_bias=bias)
    driver.step([(free, 3), (biased, 3)], masks=Masks.of({}, {1: bias}))
    before, after = free.results[-1].token, biased.results[-1].token
    assert before is not None
    assert after is not None
    assert before.token_id != after.token_id == 40


def test_only_the_sequence_that_is_not_finite_fails(models: Mapping[str, LoadedModel], instruction_set: str) -> None:
    driver = persistent(poisoned(models["grouped"]), instruction_set, num_blocks=8)
    failed, fine = driver.begin([POISON]), driver.begin([1, 2, 3])
    failed_pool = driver.begin([4, POISON], pooling=Pooling.MEAN)
    fine_pool = driver.begin([4, 5], pooling=Pooling.MEAN)
    failed_draw = driver.begin([POISON], params=SamplingParams(seed=1))
    failed_chunk = driver.begin([POISON, 1, 2], draws=False)
    runs = [failed, fine, failed_pool, fine_pool, failed_draw, failed_chunk]
    driver.step([(run, 3) for run in runs])
    good = [run for run in runs if run.results[0].fault is Fault.NONE]
    assert good == [fine, fine_pool]
    assert fine_pool.results[0].pooled is not None
    assert len(fine_pool.results[0].pooled) == SHAPES["grouped"].hidden
    healthy = persistent(models["grouped"], instruction_set, num_blocks=8)
    alone = healthy.begin([1, 2, 3])
    healthy.step([(alone, 3)])
    assert fine.results == alone.results


def test_a_kind_of_executor(models: Mapping[str, LoadedModel], instruction_set: str) -> None:
    """What it estimates is what it measures; what it can't run is refused before it is built."""
    model, shares = models["biased"], list[float]()
    wanted = workload(model, EngineOptions(threads=1, step_tokens=100, block_size=8))
    assert PersistentExecutor.refuses(wanted) == ""
    estimate = PersistentExecutor.footprint(wanted)
    executor: Executor = PersistentExecutor.build(wanted, shares.append)
    measured = executor.measure()
    assert shares[-1] == 1.0
    assert measured.kv_per_token == estimate.kv_per_token
    assert measured.workspace == estimate.workspace
    assert estimate.weights <= measured.weights < 1.1 * estimate.weights
    odd = models["odd"]
    weight = odd.weights["layers.0.q"]
    blocks = torch.zeros(weight.rows, 34, dtype=torch.uint8)
    quantised = replace(weight, format=WeightFormat.Q8_0, data=blocks)
    refusal = PersistentExecutor.refuses(workload(replace(odd, weights={**odd.weights, weight.name: quantised})))
    assert refusal == "weight layers.0.q has 60 columns, no multiple of 32"


def test_memory_of_the_weights_is_not_needed_afterwards(tmp_path: Path, instruction_set: str) -> None:
    """All but the embedding is packed: writing over the rest changes nothing."""
    model = load_model(write_folder(tmp_path / "model", TinyShape()))
    weights = {name: replace(weight, data=weight.data.clone()) for name, weight in model.weights.items()}
    driver = persistent(replace(model, weights=weights), instruction_set, num_blocks=4)

    def logprobs() -> NDArray[np.float64]:
        run = driver.begin([5, 6, 7], num_logprobs=VOCABULARY)
        driver.step([(run, 3)])
        return logprobs_of(run.results[0])

    before = logprobs()
    for name, weight in weights.items():
        if name != "embedding" and weight.rows > 1:
            weight.data.zero_()
    np.testing.assert_array_equal(logprobs(), before)
