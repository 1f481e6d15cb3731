"""Weights of which a device says that they are finite are left alone; the host looks at all others."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.eager_models import tiny_model

from polyfleet.engine import loader
from polyfleet.engine.loader import EngineParts, load
from polyfleet.loading.model import LoadedModel, ModelFileError
from polyfleet.wire.options import EngineOptions


@dataclass
class Taken:
    """An executor that took a model's weights, and found some to be finite."""

    finite: frozenset[str]
    closed: int = 0
    looked: list[bool] = field(default_factory=list)  # whether the host was to look while the model was read

    def finite_weights(self) -> frozenset[str]:
        """Those."""
        return self.finite

    def close(self) -> None:
        """Counted."""
        self.closed += 1


def loaded(model: LoadedModel, executor: Any, device: str, monkeypatch: pytest.MonkeyPatch) -> EngineParts:
    """What `load` makes of the model on a device that is not here."""

    def read(path: str, progress: Any, *, numbers: bool) -> LoadedModel:
        executor.looked.append(numbers)
        return model

    def prepare(read: Any, options: EngineOptions, progress: Any) -> EngineParts:
        return EngineParts(read(device), executor, options, device=device)

    monkeypatch.setattr(loader, "load_model", read)
    monkeypatch.setattr(loader, "prepare_engine", prepare)
    return load("model", EngineOptions(), lambda share, phase: None)


def broken(model: LoadedModel, name: str) -> LoadedModel:
    data = model.weights[name].data.clone()
    data[-1, -1] = torch.inf
    return replace(model, path="there", weights={**model.weights, name: replace(model.weights[name], data=data)})


@pytest.mark.parametrize("name", ["norm", "layers.1.down"])
def test_a_weight_that_is_not_finite_is_named_before_anything_serves(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = broken(tiny_model(tmp_path / "model"), name)
    executor = Taken(frozenset(model.weights) - {name})
    with pytest.raises(ModelFileError, match=f"^there: the tensor for '{name}' holds numbers that are not finite$"):
        loaded(model, executor, "cuda:0", monkeypatch)
    assert (executor.closed, executor.looked) == (1, [False])


def test_the_host_does_not_look_again_at_what_a_device_found_to_be_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = broken(tiny_model(tmp_path / "model"), "norm")
    executor = Taken(frozenset(model.weights))
    assert loaded(model, executor, "cuda:0", monkeypatch).device == "cuda:0"
    assert not executor.closed


def test_on_a_cpu_the_host_looks_while_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = Taken(frozenset())
    loaded(broken(tiny_model(tmp_path / "model"), "norm"), executor, "cpu", monkeypatch)
    assert executor.looked == [True], "and does not afterwards"
