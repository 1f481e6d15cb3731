"""Products in Gluon, which is not interpreted, of packed weights against float64: where their device is."""

import pytest
import torch
from tests.support.drawing import devices
from torch.nn import functional as F

triton = pytest.importorskip("triton")

from polyfleet.kernels.triton.linear import Operands, linear, streamed  # noqa: E402
from polyfleet.kernels.triton.matrices import Matrix  # noqa: E402
from polyfleet.kernels.triton.tuning import tuning  # noqa: E402
from polyfleet.kernels.weights.packed import Kind, quantise, unpack  # noqa: E402

OUTPUTS, COLUMNS = 16400, 1024  # no cut's outputs fit evenly; columns are split
TOLERANCE = 6e-3  # of a whole product


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("rows", [1, 5, 32, 64, 200])
@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("name", [each for each in devices() if tuning(torch.device(each)).streams])
def test_products_of_packed_weights(name: str, kind: Kind, rows: int) -> None:
    """With a norm before and silu behind, and with an addition behind, the same bits each time."""
    device = torch.device(name)
    packed = quantise(kind, torch.randn(OUTPUTS, COLUMNS, device=device) / COLUMNS**0.5)
    matrix, tuned = Matrix.of(packed, device), tuning(device)
    x = torch.randn(rows, COLUMNS, device=device).mul_(torch.rand(rows, 1, device=device) * 10 + 1).bfloat16()
    assert streamed(matrix, tuned, x) is not None
    plain = x.double() @ unpack(packed, torch.float32).double().t()
    squares = torch.rand(rows, 3, device=device) * COLUMNS
    gate, up = (plain * torch.rsqrt(squares.double().sum(1, keepdim=True) / COLUMNS + 1e-5)).chunk(2, dim=1)
    active = [linear(matrix, tuned, x, Operands(squares, 1e-5), silu=True)[0] for _ in range(3)]
    assert error(active[0], F.silu(gate) * up) < TOLERANCE
    residual, gain = torch.randn(rows, OUTPUTS, device=device).bfloat16(), torch.rand(OUTPUTS, device=device).bfloat16()
    added = [linear(matrix, tuned, x, Operands(residual=residual, gain=gain)) for _ in range(3)]
    total, gained, sums = added[0]
    assert error(total, plain + residual.double()) < TOLERANCE
    assert error(gained, (plain + residual.double()) * gain.double()) < TOLERANCE
    assert error(sums.sum(1), total.double().square().sum(1)) < TOLERANCE
    for first, *others in (active, *zip(*added, strict=True)):
        assert all(torch.equal(first, each) for each in others)
