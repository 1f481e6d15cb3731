"""PersistentExecutor to the bit: logprobs and hidden states in any chunks, any company, on any number of threads."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.contract.executors.test_cpu_executor import SHAPES, VOCABULARY, in_format
from tests.support.cpu_graphs import available_sets, needs_library
from tests.support.stepping import Driver, logprobs_of
from tests.support.tiny_models import write_folder

from polyfleet.executors.persistent import PersistentExecutor
from polyfleet.kernels.weights.weight import WeightFormat
from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel
from polyfleet.models.registry import record
from polyfleet.wire.requests import Pooling

pytestmark = [needs_library, pytest.mark.parametrize("instruction_set", available_sets())]

LENGTH, BLOCK = 290, 16
IDS = np.random.default_rng(2).integers(3, 89, LENGTH).tolist()
BLOCKS = -(-LENGTH // BLOCK)
CASES = [("grouped", form) for form in (WeightFormat.F32, WeightFormat.BF16, WeightFormat.Q8_0)]
CASES += [("odd", WeightFormat.F16), ("biased", WeightFormat.Q8_0), ("wide", WeightFormat.Q8_0)]
Row = NDArray[np.float64] | None  # logprobs behind a position, or its hidden state


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[1].value}", scope="module")
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    name, form = request.param
    folder: Path = tmp_path_factory.mktemp("models") / name
    return in_format(load_model(write_folder(folder, SHAPES[name])), form)


@pytest.fixture(autouse=True)
def _many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyfleet.executors.persistent.usable_cores", lambda root: 8)


def make_driver(model: LoadedModel, instruction_set: str, threads: int) -> Driver:
    executor = PersistentExecutor(
        record(model.config, model.weights),
        model.weights,
        threads=threads,
        instruction_set=instruction_set,
        reproducible=True,
    )
    return Driver(executor, 2 * BLOCKS, BLOCK)


def cut(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    begin = 0
    while begin < LENGTH:
        for size in sizes:
            if begin < LENGTH:
                yield begin, min(begin + size, LENGTH)
            begin += size


def compute(driver: Driver, sizes: Sequence[int], company: int, pooled: bool) -> dict[int, Row]:
    """By position: what each chunk's end gives, logprobs or hidden state. Company decodes within a second sequence."""
    rng = random.Random(company)
    tables = np.array(rng.sample(range(2 * BLOCKS), 2 * BLOCKS)).reshape(2, -1).tolist()
    wanted = {"pooling": Pooling.LAST} if pooled else {"num_logprobs": VOCABULARY}
    run = driver.begin(IDS, blocks=tables[0], **wanted)
    others = [driver.begin(IDS[::-1], num_logprobs=VOCABULARY, blocks=tables[1]) for _ in range(company)]
    if company:
        driver.step([(others[0], LENGTH)])
    for begin, end in cut(sizes):
        for other, place in zip(others, rng.sample(range(LENGTH), company), strict=True):
            other.sequence.num_computed = place
        driver.step([*((other, 1) for other in others), (run, end - begin)])
    found = {}
    for end, result in zip(run.ends, run.results, strict=True):
        found[end - 1] = result.pooled if pooled else logprobs_of(result)
    return found


def test_logprobs_and_hidden_states(model: LoadedModel, instruction_set: str) -> None:
    wanted = {pooled: compute(make_driver(model, instruction_set, 1), [1], 0, pooled) for pooled in (False, True)}
    for threads, sizes, company, pooled in (
        (1, [LENGTH], 0, True),
        (2, [1], 3, False),
        (2, [16, 1, 1, 130], 31, True),
        (3, [7, 64, 2], 8, False),
        (5, [255, 1, 1], 1, True),
        (5, [255, 1, 1], 1, False),
    ):
        found = compute(make_driver(model, instruction_set, threads), sizes, company, pooled)
        for position, row in found.items():
            np.testing.assert_array_equal(row, wanted[pooled][position])
    for rows in wanted.values():
        assert len(rows) == LENGTH
        assert all(row is not None and np.isfinite(row).all() for row in rows.values())


def test_a_sum_of_hidden_states_is_the_same_in_any_chunks(model: LoadedModel, instruction_set: str) -> None:
    driver, sums = make_driver(model, instruction_set, 2), []
    for sizes in ([LENGTH], [1, 30, 200], [64]):
        run = driver.begin(IDS, pooling=Pooling.MEAN, blocks=range(BLOCKS))
        for begin, end in cut(sizes):
            driver.step([(run, end - begin)])
        parts = [result.pooled for result in run.results if result.pooled is not None]
        sums.append(np.sum(parts, axis=0).astype(np.float32))
    for other in sums[1:]:
        np.testing.assert_array_equal(other, sums[0])
