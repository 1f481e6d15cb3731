"""Weights quantised in groups, as blocks: the numbers stay, and the CPU library computes with them."""

import numpy as np
import pytest
import torch
from tests.support.cpu_graphs import FusedBuilder, Rig, available_sets, expand, needs_library

from polyfleet.kernels.weights.folder_blocks import pack_fp8, pack_integers
from polyfleet.kernels.weights.packed import Kind, kept, pack_weights, packed_bytes, unpack
from polyfleet.kernels.weights.quantisation import dequantise
from polyfleet.kernels.weights.weight import Weight, WeightFormat

ROWS, COLUMNS = 24, 256
RANGES = {WeightFormat.INT4: 16, WeightFormat.INT8: 256}
CPU = torch.device("cpu")


def scales(group: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(ROWS, COLUMNS // group, generator=generator) * 0.02 + 0.001


def integers(form: WeightFormat, group: int, *, zeros: bool) -> tuple[Weight, torch.Tensor]:
    """A weight, and what it should stand for."""
    generator, most = torch.Generator().manual_seed(2), RANGES[form]
    codes = torch.randint(0, most, (ROWS, COLUMNS), generator=generator)
    zero = torch.randint(0, most, (ROWS, COLUMNS // group), generator=generator) if zeros else None
    wide = (torch.full_like(scales(group), most // 2) if zero is None else zero).repeat_interleave(group, dim=1)
    expected = scales(group).repeat_interleave(group, dim=1) * (codes - wide)
    return pack_integers("w", form, codes, scales(group), zero), expected


@pytest.mark.parametrize("form", list(RANGES))
def test_integers_keep_their_numbers(form: WeightFormat) -> None:
    for group, zeros in ((32, True), (64, False), (128, True), (256, False)):
        weight, expected = integers(form, group, zeros=zeros)
        assert (weight.format, weight.rows, weight.columns) == (form, ROWS, COLUMNS)
        torch.testing.assert_close(dequantise(weight, torch.float32), expected, rtol=0, atol=0)
        np.testing.assert_allclose(expand(weight), expected.double(), rtol=1e-6)


def test_fp8_keeps_its_numbers() -> None:
    numbers = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(4)).to(torch.float8_e4m3fn)
    weight = pack_fp8("w", numbers, scales(128))
    expected = numbers.float() * scales(128).repeat_interleave(128, dim=1)
    torch.testing.assert_close(dequantise(weight, torch.float32), expected, rtol=0, atol=0)
    np.testing.assert_allclose(expand(weight), expected.double(), rtol=1e-6)
    packed = pack_weights(Kind.FP8, [weight], CPU)
    assert (kept([weight], "auto"), kept([weight], "")) == (Kind.FP8, None)
    assert (packed.group, packed.nbytes) == (128, ROWS * (COLUMNS + 4 * 2)), "blocks of one group are one"
    assert packed.nbytes <= packed_bytes(Kind.FP8, [weight])
    torch.testing.assert_close(unpack(packed, torch.float32), expected, rtol=2**-8, atol=0)


@pytest.mark.parametrize(("group", "zeros"), [(32, True), (128, False), (256, True)])
def test_int4_packed_for_devices(group: int, *, zeros: bool) -> None:
    weight, expected = integers(WeightFormat.INT4, group, zeros=zeros)
    other, beside = integers(WeightFormat.INT4, 128, zeros=False)
    assert kept([weight, other], "auto") is Kind.INT4
    packed = pack_weights(Kind.INT4, [weight, other], CPU)
    assert (packed.group, packed.minima) == (min(group, 128), zeros)
    found = unpack(packed, torch.float32)
    error = (found - torch.cat((expected, beside))).abs().max()
    assert error <= 30 * float(scales(32).max()) * 2**-8, "scales and minima are bfloat16"


def test_shapes_and_codes_that_do_not_fit() -> None:
    codes, form = torch.zeros(ROWS, COLUMNS, dtype=torch.int64), WeightFormat.INT8
    with pytest.raises(ValueError, match="a group must have a multiple of 32 columns"):
        pack_integers("w", form, codes, torch.ones(ROWS, 16))
    with pytest.raises(ValueError, match=r"\(24, 3\) scales or zeros don't fit 24 x 256 codes"):
        pack_integers("w", form, codes, torch.ones(ROWS, 3))
    with pytest.raises(ValueError, match=r"INT4 codes must be in 0 \.\.\. 15"):
        pack_integers("w", WeightFormat.INT4, codes - 1, torch.ones(ROWS, 4))
    with pytest.raises(ValueError, match=r"INT8 zeros must be in 0 \.\.\. 255"):
        pack_integers("w", form, codes, torch.ones(ROWS, 4), torch.full((ROWS, 4), 256))


@needs_library
@pytest.mark.parametrize("instruction_set", available_sets())
def test_the_engine_computes_with_them(instruction_set: str) -> None:
    """The lowest int8 code, too, which GGML's own quantiser never writes."""
    codes = torch.randint(0, 256, (ROWS, COLUMNS), generator=torch.Generator().manual_seed(3))
    codes[:, ::2] = 0
    weight = pack_integers("w", WeightFormat.INT8, codes, scales(64).half().float())
    rows = np.random.default_rng(0).choice(np.array([-1, 1], dtype=np.float32), (5, COLUMNS))

    def record(graph: FusedBuilder, x: int) -> int:
        return graph.linear(x, "w")

    result = Rig(rows, record, weight, instruction_set=instruction_set).all_rows(5)
    np.testing.assert_allclose(result, rows.astype(np.float64) @ expand(weight).T, rtol=1e-5, atol=1e-4)
