"""What the device's program asks of it: nothing that waits, no more memory than is stated, no work nobody needs."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.drawing import Draw, columns, devices, random_draw, random_masks, starts
from torch.utils._python_dispatch import TorchDispatchMode

from polyfleet.sampling import device
from polyfleet.sampling.device import DeviceSampler
from polyfleet.sampling.device_counts import DeviceCounts
from polyfleet.sampling.draw import Drawn, Start
from polyfleet.sampling.host import HostSampler
from polyfleet.wire.sampling import SamplingParams

WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal", "is_nonzero", "bincount"}
VIEWS = {"detach", "index", "index_select"}  # take all to give a part
VOCABULARY, ROWS = 512, 64


class Recorded(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes each op's name, and the sizes of the largest tensors that it takes and makes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: list[tuple[str, int, int]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in ("index", "index_put", "index_put_"):
            name = "nonzero" if any(each is not None and each.dtype == torch.bool for each in args[1]) else name
        self.ops.append((name, largest(args), largest(out)))
        return out


def largest(values: Any) -> int:
    if isinstance(values, torch.Tensor):
        return values.numel()
    return max(map(largest, values), default=0) if isinstance(values, list | tuple) else 0


@contextmanager
def failing_waits(name: str) -> Iterator[None]:
    """On CUDA the driver says what waits; elsewhere the names of ops do."""
    if name.startswith("cuda"):
        torch.cuda.set_sync_debug_mode("error")  # noqa: TID251
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")  # noqa: TID251
    else:
        with Recorded() as recorded:
            yield
        assert not {op for op, _, _ in recorded.ops} & WAITING


@pytest.mark.parametrize("name", devices())
def test_nothing_waits_for_the_device(name: str) -> None:
    source = random.Random(1)
    draws = [random_draw(source, VOCABULARY) for _ in range(150)]
    logits, masks = torch.randn(150, VOCABULARY).to(name), random_masks(source, 150, VOCABULARY)
    sampler = DeviceSampler(torch.device(name), VOCABULARY)
    with failing_waits(name):
        sampler.start(starts(draws))
        drawn = [sampler.draw(logits, columns(draws, masks)) for _ in range(2)]
        if name != "cpu":
            drawn[0].staged()
    with pytest.raises((AssertionError, RuntimeError)), failing_waits(name):
        drawn[0].token_ids[0].item()


def test_a_greedy_step_costs_an_argmax_and_a_check() -> None:
    draws = columns([Draw(SamplingParams(temperature=0.0))] * 8)
    logits = torch.randn(8, VOCABULARY)
    sampler = DeviceSampler(torch.device("cpu"), VOCABULARY)
    with Recorded() as recorded:
        sampler.draw(logits, draws)
    over_logits = [op for op, taken, _ in recorded.ops if taken >= logits.numel()]
    assert sorted(over_logits) == ["aminmax", "argmax"]
    assert max(made for _, _, made in recorded.ops) == 8


@pytest.mark.parametrize(
    ("sampler", "passes"),
    [("device", {"argmax", "aminmax"}), ("host", {"amin", "amax"}), ("host, likeliest known", set())],
)
def test_a_masked_row_costs_its_row(sampler: str, passes: set[str]) -> None:
    """And each of the others no more than without it: an argmax and a check, or nothing."""
    draws, allowed = [Draw(SamplingParams(temperature=0.0))] * 8, np.ones((8, VOCABULARY), dtype=bool)
    allowed[3, ::2] = allowed[5, 7] = False
    asked, logits = columns(draws, allowed), torch.randn(8, VOCABULARY)
    likeliest = Drawn(logits.numpy().argmax(-1), np.ones(8, dtype=bool)) if "known" in sampler else None
    with Recorded() as recorded:
        if sampler == "device":
            token_ids = DeviceSampler(torch.device("cpu"), VOCABULARY).draw(logits, asked).token_ids.numpy()
        else:
            token_ids = HostSampler().draw(logits, asked, likeliest).token_ids
    np.testing.assert_array_equal(token_ids, np.where(allowed, logits, -np.inf).argmax(-1))
    over_logits = {op for op, taken, _ in recorded.ops if taken >= logits.numel()} - VIEWS
    assert over_logits == passes
    assert max((made for op, _, made in recorded.ops if op != "detach"), default=0) <= 2 * VOCABULARY


def test_a_step_takes_no_more_memory_than_some_rows_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "LOGITS", ROWS * VOCABULARY + 7)
    source = random.Random(2)
    draws = [random_draw(source, VOCABULARY) for _ in range(4 * ROWS)]
    logits, masks = torch.randn(4 * ROWS, VOCABULARY), random_masks(source, 4 * ROWS, VOCABULARY)
    sampler = DeviceSampler(torch.device("cpu"), VOCABULARY)
    sampler.start(starts(draws))
    table = sampler._counts._table.numel()
    with Recorded() as recorded:
        sampler.draw(logits, columns(draws, masks))
    made = [size for op, _, size in recorded.ops if op not in ("view", "scatter_add_")]
    assert max(made) == ROWS * VOCABULARY < table


def test_counts_take_a_row_of_each_penalised_slot() -> None:
    counts = DeviceCounts(torch.device("cpu"), 10)
    for slot in (7, 3, 200):
        counts.start(Start(slot, (1, 1, 2), (2, 2, 5)))
    assert counts._table.shape == (4, 10)
    counts.add(np.array([200, 7]), torch.tensor([5, 9]), torch.tensor([True, False]))
    for _ in range(5):
        counts.start(Start(3, (4,), ()))
    assert counts._table.tolist() == [
        [0, 1, 5, 0, 0, 2, 0, 0, 0, 0],
        [0, 0, 0, 0, 1, 0, 0, 0, 0, 0],
        [0, 1, 5, 0, 0, 4, 0, 0, 0, 0],
        [0] * 10,
    ]
