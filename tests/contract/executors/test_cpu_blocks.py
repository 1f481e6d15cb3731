"""The CPU executor's blocks: cleared, carried elsewhere and back, and shared by batches in any room."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.contract.executors.test_cpu_executor import POISON, SHAPES, eager, persistent, poisoned
from tests.support.batching import Outcomes, run_all
from tests.support.batching import request as make_request
from tests.support.cpu_graphs import available_sets, needs_library
from tests.support.tiny_models import write_folder

from polyfleet.engine.batching.batch import BatchLimits
from polyfleet.engine.batching.batcher import Batcher
from polyfleet.engine.executor import Capacity, Fault
from polyfleet.executors.persistent import PersistentExecutor
from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel
from polyfleet.models.registry import record
from polyfleet.wire.requests import SequenceRequest
from polyfleet.wire.sampling import SamplingParams

pytestmark = [needs_library, pytest.mark.parametrize("instruction_set", available_sets())]

PARAMS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.0, repetition_penalty=1.3, frequency_penalty=0.5),
    SamplingParams(temperature=1.0, seed=5, top_k=20),
    SamplingParams(temperature=0.8, seed=9, top_p=0.9, presence_penalty=0.7),
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, LoadedModel]:
    folder = tmp_path_factory.mktemp("models")
    return {name: load_model(write_folder(folder / name, SHAPES[name])) for name in ("grouped", "odd", "wide")}


def test_a_cleared_block_serves_the_next_sequence(models: Mapping[str, LoadedModel], instruction_set: str) -> None:
    driver = persistent(poisoned(models["grouped"]), instruction_set, num_blocks=1)
    failed = driver.begin([4, POISON, 5], draws=False)
    driver.step([(failed, 3)])
    assert failed.results[0].fault is Fault.NOT_FINITE
    assert not all(np.isfinite(cache).all() for cache in driver.executor.export_blocks([0]))
    driver.end(failed)
    driver.assembler.clear([0])
    run = driver.begin([1, 2, 3], room=5)
    found = driver.generate(run, 6)
    assert all(np.isfinite(cache).all() for cache in driver.executor.export_blocks([0]))
    other = persistent(models["grouped"], instruction_set, num_blocks=1)
    assert found == other.generate(other.begin([1, 2, 3], room=5), 6)


@pytest.mark.parametrize("name", ["grouped", "odd"])
@pytest.mark.parametrize("block_size", [5, 16])
def test_exported_blocks_go_on_elsewhere(
    models: Mapping[str, LoadedModel], instruction_set: str, name: str, block_size: int
) -> None:
    prompt, number = list(range(5, 45)), 12
    sizes = {"num_blocks": 40, "block_size": block_size}
    first, second = (persistent(models[name], instruction_set, **sizes) for _ in range(2))
    source, target = first.begin(prompt, room=number), second.begin(prompt, room=number)
    tokens = first.generate(source, number)
    used = -(-len(prompt) // block_size)
    blocks = source.sequence.blocks[:used], target.sequence.blocks[-used:]
    exported = first.executor.export_blocks(blocks[0])
    second.executor.import_blocks(blocks[1], exported)
    for ours, theirs in zip(exported, second.executor.export_blocks(blocks[1]), strict=True):
        assert ours.dtype == np.float16
        np.testing.assert_array_equal(ours, theirs)
    moved = second.begin(prompt, blocks=[*blocks[1], *second.begin([1] * 40).sequence.blocks])
    moved.sequence.num_computed = len(prompt)
    moved.append(tokens[0])
    assert second.generate(moved, number - 1) == tokens[1:]


def test_exported_blocks_are_those_of_the_eager_executor(
    models: Mapping[str, LoadedModel], instruction_set: str
) -> None:
    """[2, tokens, kv heads, width] of each cache, in the order of the blocks named, keys after rotation."""
    exported = []
    for driver in (
        persistent(models["wide"], instruction_set, num_blocks=8, block_size=4),
        eager(models["wide"], num_blocks=8, block_size=4),
    ):
        run = driver.begin(range(10, 22))
        driver.step([(run, 12)])
        exported.append(driver.executor.export_blocks(run.sequence.blocks[::-1]))
    assert len(exported[0]) == SHAPES["wide"].layers
    for mine, other in zip(*exported, strict=True):
        assert mine.shape == (2, 12, SHAPES["wide"].kv_heads, SHAPES["wide"].head_dim)
        np.testing.assert_allclose(mine, other, atol=5e-3)


def test_imports_of_another_shape(models: Mapping[str, LoadedModel], instruction_set: str) -> None:
    driver = persistent(models["grouped"], instruction_set, num_blocks=4)
    exported = driver.executor.export_blocks([1, 2])
    with pytest.raises(ValueError, match=r"2 caches of \[\(2, 16, 2, 16\), "):
        driver.executor.import_blocks([1], exported)
    with pytest.raises(ValueError, match=r"2 caches of \[\(2, 32, 2, 16\), "):
        driver.executor.import_blocks([1, 2], exported[:1])


def numbered(number: int) -> SequenceRequest:
    """Prompts begin alike; every other of three reports logprobs."""
    length, most = 3 + 5 * (number % 4), 4 + 3 * (number % 5)
    made = make_request(number, length, most, sampling=PARAMS[number % 4], logprobs=2 if number % 3 == 0 else None)
    return replace(made, prompt_ids=(8, 9, *range(5, 3 + length)))


def run_batch(
    model: LoadedModel, instruction_set: str, num_blocks: int, requests: Sequence[SequenceRequest]
) -> tuple[Outcomes, Batcher]:
    graph, capacity = record(model.config, model.weights), Capacity(num_blocks, 4, 6, 10, 24)
    executor = PersistentExecutor(graph, model.weights, threads=1, instruction_set=instruction_set, reproducible=True)
    executor.allocate(capacity)
    batcher = Batcher(executor, capacity, BatchLimits(6, 24, 40))
    for request in requests:
        batcher.add(request)
    return run_all(batcher), batcher


def test_a_batch_in_any_room_comes_to_the_same_tokens(models: Mapping[str, LoadedModel], instruction_set: str) -> None:
    """With preemptions, cached prefixes, penalties and seeds, beside sequences that come to no finite numbers."""
    model, requests = poisoned(models["grouped"]), [numbered(number) for number in range(12)]
    broken = [replace(make_request(50 + number, 9), prompt_ids=(1,) * 6 + (POISON,) * 3) for number in range(3)]
    expected = {}
    for request in requests:
        outcomes, _ = run_batch(model, instruction_set, 80, [request])
        expected[request.sequence_id] = outcomes[request.sequence_id].token_ids
    for num_blocks in (80, 10):
        found, batcher = run_batch(model, instruction_set, num_blocks, [*broken, *requests])
        assert {name: found[name].token_ids for name in expected} == expected
        assert all(found[request.sequence_id].error for request in broken)
        assert (batcher.counters.preemptions > 0) == (num_blocks == 10)
        assert batcher.counters.prefix_hit_tokens > 0
