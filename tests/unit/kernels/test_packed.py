"""Weights that stay quantised: what they are packed from and what they are again."""

import pytest
import torch
from torch import Tensor

from polyfleet.kernels.weights.packed import Kind, kept, pack, pack_weights, packed_bytes, quantise, unpack
from polyfleet.kernels.weights.quantisation import BLOCKS, dequantise
from polyfleet.kernels.weights.weight import Weight, WeightFormat

CPU = torch.device("cpu")


def dense(name: str = "w", rows: int = 6, columns: int = 512) -> Weight:
    return Weight(name, WeightFormat.F32, rows, columns, torch.randn(rows, columns))


def blocks(form: WeightFormat, rows: int = 4, columns: int = 512) -> Weight:
    """Random codes with scales and minima of about 1."""
    layout = BLOCKS[form]
    data = torch.randint(0, 256, (rows, columns // layout.weights, layout.size), dtype=torch.uint8)
    for place in range(0, 2 if form is WeightFormat.Q4_0 else 4, 2):
        numbers = torch.rand(*data.shape[:2], 1).half() + 0.5
        data[..., place : place + 2] = numbers.view(torch.uint8)
    return Weight("w", form, rows, columns, data.flatten(1))


@pytest.mark.parametrize("columns", [512, 384, 96])
def test_codes_are_what_they_were(columns: int) -> None:
    codes = torch.randint(0, 16, (3, columns), dtype=torch.uint8)
    scales, minima = torch.ones(3, columns // 32), torch.full((3, columns // 32), -2.0)
    if columns == 96:
        with pytest.raises(ValueError, match="3 x 96 codes can't be packed in groups of 32"):
            pack(Kind.INT4, codes, scales, minima)
    else:
        assert torch.equal(unpack(pack(Kind.INT4, codes, scales, minima), torch.float32), codes.float() - 2)


@pytest.mark.parametrize(("kind", "most"), [(Kind.FP8, 0.03), (Kind.INT4, 0.14)])
def test_quantised_weights_are_near(kind: Kind, most: float) -> None:
    weight = torch.randn(8, 512)
    weight[3] = 0
    found = unpack(quantise(kind, weight), torch.float32)
    assert float((found - weight).norm() / weight.norm()) < most
    assert not found[3].any()


@pytest.mark.parametrize("form", [WeightFormat.Q4_0, WeightFormat.Q4_1, WeightFormat.Q4_K])
def test_groups_of_files_stay_but_for_the_rounding_of_their_scales(form: WeightFormat) -> None:
    weight = blocks(form)
    assert kept([weight], "int4") is Kind.INT4
    assert kept([weight], "") is None
    packed = pack_weights(Kind.INT4, [weight, weight], CPU)
    expected: Tensor = dequantise(weight, torch.float32)
    torch.testing.assert_close(
        unpack(packed, torch.float32)[4:], expected, rtol=0, atol=float(expected.abs().max()) / 128
    )
    assert packed.nbytes == packed_bytes(Kind.INT4, [weight, weight])


def test_what_stays_quantised() -> None:
    assert kept([dense()], "fp8") is Kind.FP8
    assert kept([dense(), dense()], "int4") is Kind.INT4
    assert kept([dense("lm_head")], "int4") is Kind.FP8
    assert kept([dense(columns=576)], "int4") is Kind.FP8
    assert kept([dense(columns=100)], "fp8") is None
    assert kept([dense(rows=1)], "fp8") is None
    assert kept([dense()], "") is None
    for kind in Kind:
        assert pack_weights(kind, [dense()], CPU).nbytes == packed_bytes(kind, [dense()])
