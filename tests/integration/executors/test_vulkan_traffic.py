"""What a step moves between host and Vulkan device, counted on a software one."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.support.masking import sparse
from tests.support.tiny_models import TinyShape, random_tensors, write_folder

from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel
from polyfleet.wire.sampling import GREEDY, SamplingParams

pytest.importorskip("wgpu", reason="the vulkan extra is not installed")
from tests.support.vulkan_drivers import Drivers, choose_software

from polyfleet.kernels.vulkan.device import VulkanDevice
from polyfleet.kernels.vulkan.program import VulkanProgram


@pytest.fixture
def drivers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Drivers]:
    choose_software(monkeypatch)
    made = Drivers()
    yield made
    made.close()


def tiny(folder: Path) -> LoadedModel:
    shape = TinyShape()
    return load_model(str(write_folder(folder, shape, random_tensors(shape))))


def test_only_rows_that_the_device_cannot_draw_are_read_back(
    tmp_path: Path, drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[int]] = []
    read_rows = VulkanProgram.read_rows

    def spied(self: VulkanProgram, value: int, rows: NDArray[np.int64]) -> torch.Tensor:
        asked.append(rows.tolist())
        return read_rows(self, value, rows)

    monkeypatch.setattr(VulkanProgram, "read_rows", spied)
    hot, allowed = SamplingParams(temperature=1.0, seed=7), np.ones((5, 96), dtype=np.bool_)
    allowed[3, :60] = False
    tokens = []
    for side in drivers.pair(tiny(tmp_path)):
        own = [side.begin([5, 6, 7 + at], params=hot if at == 1 else GREEDY) for at in range(4)]
        own.append(side.begin([9, 8], num_logprobs=2))
        side.step([(run, len(run.sequence.request.prompt_ids)) for run in own], masks=sparse(allowed))
        tokens.append([run.results[0].token for run in own])
    assert asked == [[1, 3, 4]]
    expected, mine = ([(each.token_id, each.top_ids) if each else None for each in side] for side in tokens)
    assert mine == expected
    assert mine[3] is not None
    assert mine[3][0] >= 60


def test_a_decode_step_is_one_submission_one_read_and_two_writes(
    tmp_path: Path, drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    vulkan = drivers.vulkan(tiny(tmp_path))
    run = vulkan.begin(range(3, 10), room=3)
    vulkan.generate(run, 2)
    calls: Counter[str] = Counter()
    for name in ("write", "submit", "read", "buffer"):
        method = getattr(VulkanDevice, name)

        def counted(*arguments: Any, name: str = name, method: Any = method) -> Any:
            calls[name] += 1
            return method(*arguments)

        monkeypatch.setattr(VulkanDevice, name, counted)
    vulkan.step([(run, 1)])
    assert calls == {"write": 3, "submit": 1, "read": 1}  # of the table's rows that changed nothing is moved
