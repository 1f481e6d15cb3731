"""Weights on their way to a device, and the look at their numbers there."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tests.support.kernel_cases import make_context

from polyfleet.kernels import moving

Clone = Callable[[torch.Tensor], torch.Tensor]
CPU = torch.device("cpu")


@pytest.mark.parametrize(("shape", "pieces"), [((5, 7), 3), ((2, 2), 0)])
def test_what_is_large_goes_in_pieces(shape: tuple[int, int], pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one is what is left."""
    pinned: list[int] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tensor.numel())
        return tensor.clone()

    monkeypatch.setattr(moving, "PIECE", 64)
    monkeypatch.setattr(moving, "can_pin", lambda device_type: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    tensor = torch.randn(shape)
    found = moving.moved(tensor, CPU, torch.bfloat16)
    assert torch.equal(found, tensor.to(torch.bfloat16))
    assert len(pinned) == pieces
    assert sum(pinned) == tensor.numel() * (pieces > 0)
    assert torch.equal(moving.moved(tensor.t(), CPU, torch.float32), tensor.t()), "what is not contiguous goes as it is"


def test_dense_weights_are_looked_at_as_they_are_taken() -> None:
    numbers = {name: torch.randn(3, 8) for name in ("fine", "odd", "endless", "vector", "unread")}
    numbers["odd"][1, 2] = torch.nan
    numbers["endless"][2, 7] = -torch.inf
    numbers["vector"] = torch.full((1, 8), 3e38)  # whose sum is more than a float holds: the host has to say
    context = replace(make_context(weights=numbers), looks=True)
    context.dense("fine", "odd")
    context.matrix("endless")
    context.wide("vector")
    assert context.finite() == {"fine"}
    assert context.finite() == frozenset(), "each is told once"


def test_nobody_looks_where_the_host_has() -> None:
    context = make_context(weights={"fine": torch.randn(3, 8)})
    context.dense("fine")
    assert context.finite() == frozenset()
