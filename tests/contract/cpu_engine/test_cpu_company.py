"""PersistentKernel to the bit: logprobs and hidden states of a sequence in any chunks, any company, on any threads."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.contract.cpu_engine.test_cpu_executor import SHAPES, VOCABULARY, in_format
from tests.support.cpu_graphs import available_sets, needs_library
from tests.support.stepping import logprob_draw, logprobs_of
from tests.support.tiny_models import write_folder

from polyfleet.engine.batch import PoolingKind, SequenceSlice, StepBatch
from polyfleet.engine.persistent import PersistentKernel
from polyfleet.kernels.weights import WeightFormat
from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel
from polyfleet.models.registry import record

pytestmark = [needs_library, pytest.mark.parametrize("instruction_set", available_sets())]

LENGTH, BLOCK = 290, 16
IDS = np.random.default_rng(2).integers(3, 89, LENGTH).tolist()
BLOCKS = -(-LENGTH // BLOCK)
DRAW = logprob_draw(VOCABULARY)
CASES = [("grouped", form) for form in (WeightFormat.F32, WeightFormat.BF16, WeightFormat.Q8_0)]
CASES += [("odd", WeightFormat.F16), ("biased", WeightFormat.Q8_0), ("wide", WeightFormat.Q8_0)]
Row = tuple[NDArray[np.float64], NDArray[np.float32]]  # logprobs behind a position, its hidden state


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[1].value}", scope="module")
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    name, form = request.param
    folder: Path = tmp_path_factory.mktemp("models") / name
    return in_format(load_model(write_folder(folder, SHAPES[name])), form)


@pytest.fixture(autouse=True)
def _many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyfleet.engine.persistent.usable_cores", lambda root: 8)


def executor(model: LoadedModel, instruction_set: str, threads: int) -> PersistentKernel:
    return PersistentKernel(
        record(model.config, model.weights),
        weights=model.weights,
        num_blocks=2 * BLOCKS,
        block_size=BLOCK,
        threads=threads,
        instruction_set=instruction_set,
        reproducible=True,
    )


def cut(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    begin = 0
    while begin < LENGTH:
        for size in sizes:
            if begin < LENGTH:
                yield begin, min(begin + size, LENGTH)
            begin += size


def compute(kernel: PersistentKernel, sizes: Sequence[int], company: int, pooled: bool) -> dict[int, Row]:
    """By position: what each chunk's end gives. Company decodes within a second sequence."""
    rng = random.Random(company)
    tables = np.array(rng.sample(range(2 * BLOCKS), 2 * BLOCKS)).reshape(2, -1).tolist()
    pooling = PoolingKind.LAST if pooled else None
    if company:
        kernel.step(StepBatch((SequenceSlice(IDS[::-1], 0, tables[1]),)))
    found = {}
    for begin, end in cut(sizes):
        places = rng.sample(range(LENGTH), company)
        others = [SequenceSlice([IDS[::-1][place]], place, tables[1], DRAW) for place in places]
        piece = SequenceSlice(IDS[begin:end], begin, tables[0], DRAW, pooling)
        result = kernel.step(StepBatch((*others, piece)))[-1]
        found[end - 1] = (logprobs_of(result), np.array(result.pooled, dtype=np.float32))
    return found


def test_logprobs_and_hidden_states(model: LoadedModel, instruction_set: str) -> None:
    wanted = compute(executor(model, instruction_set, 1), [1], 0, True)
    for threads, sizes, company, pooled in (
        (1, [LENGTH], 0, True),
        (2, [1], 3, False),
        (2, [16, 1, 1, 130], 31, True),
        (3, [7, 64, 2], 8, False),
        (5, [255, 1, 1], 1, True),
    ):
        found = compute(executor(model, instruction_set, threads), sizes, company, pooled)
        for position, (logprobs, hidden) in found.items():
            np.testing.assert_array_equal(logprobs, wanted[position][0])
            if pooled:
                np.testing.assert_array_equal(hidden, wanted[position][1])
    assert len(wanted) == LENGTH
    assert all(np.isfinite(logprobs).all() for logprobs, _ in wanted.values())


def test_a_sum_of_hidden_states_is_the_same_in_any_chunks(model: LoadedModel, instruction_set: str) -> None:
    kernel, sums = executor(model, instruction_set, 2), []
    for sizes in ([LENGTH], [1, 30, 200], [64]):
        parts = [
            kernel.step(StepBatch((SequenceSlice(IDS[begin:end], begin, range(BLOCKS), pooling=PoolingKind.MEAN),)))[
                0
            ].pooled
            for begin, end in cut(sizes)
        ]
        sums.append(np.sum(parts, axis=0).astype(np.float32))
    for other in sums[1:]:
        np.testing.assert_array_equal(other, sums[0])
