"""PersistentExecutor's steps: plans that would leave the engine's memory, refused steps, a closed engine."""

from collections.abc import Callable
from unittest.mock import Mock

import numpy as np
import pytest
from tests.support.cpu_graphs import (
    needs_library,
)
from tests.support.stepping import Driver
from tests.support.tiny_models import TinyShape, write_folder

from polyfleet.engine.executor import Capacity
from polyfleet.engine.step.plan import StepPlan
from polyfleet.executors.persistent import PersistentExecutor
from polyfleet.executors.step_fields import StepFields
from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel
from polyfleet.models.registry import record
from polyfleet.wire.requests import Pooling

CAPACITY = Capacity(num_blocks=4, block_size=16, max_sequences=4, max_blocks=4, step_tokens=64)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(write_folder(tmp_path_factory.mktemp("persistent") / "model", TinyShape()))


def executor(model: LoadedModel, **options: object) -> PersistentExecutor:
    return PersistentExecutor(record(model.config, model.weights), model.weights, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def driver(model: LoadedModel) -> Driver:
    return Driver(executor(model), num_blocks=4)


def write(field: str, index: int, value: int) -> Callable[[StepPlan], None]:
    def spoil(plan: StepPlan) -> None:
        getattr(plan, field)[index] = value

    return spoil


def point(block: int) -> Callable[[StepPlan], None]:
    def spoil(plan: StepPlan) -> None:
        plan.block_tables[plan.slots[0], 0] = block

    return spoil


@needs_library
@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (write("token_ids", 0, 96), "token ids must be 0 to 95"),
        (write("token_ids", 1, -1), "token ids must be 0 to 95"),
        (write("token_ids", 2, 2**31 - 1), "token ids must be 0 to 95"),
        (point(4), "block tables must name blocks 0 to 3"),
        (point(-1), "block tables must name blocks 0 to 3"),
        (write("cleared_blocks", 0, 4), "block tables must name blocks 0 to 3"),
        (write("lengths", 0, 65), "a block for each of its positions"),
        (write("lengths", 1, 2**31 - 1), "a block for each of its positions"),
        (write("lengths", 1, 1), "a start of 0 or more"),
        (write("row_starts", 1, 0), "a sequence must have tokens"),
        (write("row_starts", 1, 4), "a sequence must have tokens"),
        (write("row_starts", 0, -1), "a sequence must have tokens"),
        (write("row_starts", 2, 2), "all rows must be of sequences"),
        (write("slots", 1, 64), "slots must be 0 to 63"),
        (write("slots", 0, -1), "slots must be 0 to 63"),
        (write("draw_rows", 0, 3), "draws must be of rows 0 to 2"),
        (write("draw_rows", 1, -1), "draws must be of rows 0 to 2"),
    ],
)
def test_a_step_never_leaves_the_engines_memory(
    driver: Driver, spoil: Callable[[StepPlan], None], sentence: str
) -> None:
    """Nothing is written by a step that is refused: blocks are neither cleared nor computed."""
    before = driver.executor.export_blocks(range(4))
    first, second = driver.begin([1], blocks=[1]), driver.begin([5, 6], blocks=[3])
    driver.assembler.clear([2])
    plan = driver.assembler.assemble([first.next_piece(1), second.next_piece(2)])
    spoil(plan)
    with pytest.raises(ValueError, match=sentence):
        driver.executor.launch(plan)
    driver.assembler.accepted()
    driver.end(first, keep_blocks=True)
    driver.end(second, keep_blocks=True)
    for old, new in zip(before, driver.executor.export_blocks(range(4)), strict=True):
        np.testing.assert_array_equal(old, new)


@needs_library
def test_a_refused_step_is_forgotten(model: LoadedModel) -> None:
    """What the next step comes to is what it comes to alone."""
    alone, together = (Driver(executor(model), num_blocks=4) for _ in range(2))
    broken = together.begin([96])
    with pytest.raises(ValueError, match="token ids"):
        together.launch([(broken, 1)])
    expected, found = (driver.generate(driver.begin([1, 2, 3], room=8), 6) for driver in (alone, together))
    assert found == expected


@needs_library
def test_a_closed_executor_says_so(model: LoadedModel) -> None:
    chosen = executor(model)
    driver = Driver(chosen, num_blocks=4)
    chosen.close()
    chosen.close()
    with pytest.raises(ValueError, match="this model is closed"):
        driver.step([(driver.begin([1]), 1)])


def test_a_plan_is_read_where_it_lies() -> None:
    """The engine's pointers lead to the plan's own numbers, whatever else is in them."""
    driver = Driver(Mock(), num_blocks=8)
    runs = [driver.begin([7], blocks=[3]), driver.begin([4, 5], pooling=Pooling.MEAN), driver.begin([1, 2, 3])]
    driver.assembler.clear([6, 2])
    plan = driver.assembler.assemble([run.next_piece(3) for run in runs])
    fields = StepFields()
    for _ in range(3):
        step = fields.of(plan)
        for name in ("token_ids", "slots", "row_starts", "lengths", "draw_rows", "cleared_blocks", "block_tables"):
            array = getattr(plan, name)
            assert getattr(step, name) == array.ctypes.data, name
        counts = (step.num_rows, step.num_sequences, step.num_draws, step.num_cleared, step.num_slots, step.table_width)
        assert counts == (6, 3, 2, 2, 64, 8)
        assert step.greedy_ids == fields.token_ids.ctypes.data
