"""Weights quantised in groups, repacked as blocks: the numbers stay, and the CPU library computes with them."""

import numpy as np
import pytest
import torch
from tests.support.cpu_graphs import FusedBuilder, Rig, available_sets, expand, needs_library

from polyfleet.kernels.cpu.groups import pack_int4_groups, pack_int8_groups
from polyfleet.kernels.weights import WeightFormat

ROWS, COLUMNS = 24, 256


def scales(group: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return (torch.rand(ROWS, COLUMNS // group, generator=generator) * 0.02 + 0.001).half()


@pytest.mark.parametrize("group", [32, 64, 128, 256])
def test_int4_groups_keep_their_numbers(group: int) -> None:
    generator = torch.Generator().manual_seed(2)
    codes = torch.randint(0, 16, (ROWS, COLUMNS), generator=generator)
    zeros = torch.randint(0, 16, (ROWS, COLUMNS // group), generator=generator)
    weight = pack_int4_groups("w", codes, scales(group), zeros)
    assert (weight.format, weight.rows, weight.columns) == (WeightFormat.Q4_1, ROWS, COLUMNS)
    wide = [each.double().repeat_interleave(group, dim=1) for each in (scales(group), zeros)]
    np.testing.assert_allclose(expand(weight), wide[0] * (codes - wide[1]), rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("group", [32, 64, 128, 256])
def test_int8_groups_keep_their_numbers(group: int) -> None:
    codes = torch.randint(-128, 128, (ROWS, COLUMNS), generator=torch.Generator().manual_seed(3))
    weight = pack_int8_groups("w", codes, scales(group))
    assert (weight.format, weight.rows, weight.columns) == (WeightFormat.Q8_0, ROWS, COLUMNS)
    expected = codes * scales(group).double().repeat_interleave(group, dim=1)
    np.testing.assert_allclose(expand(weight), expected, rtol=1e-6)


def test_shapes_and_codes_that_do_not_fit() -> None:
    codes = torch.zeros(ROWS, COLUMNS, dtype=torch.int64)
    with pytest.raises(ValueError, match="a group must have a multiple of 32 columns"):
        pack_int8_groups("w", codes, torch.ones(ROWS, 16))
    with pytest.raises(ValueError, match=r"\(24, 3\) scales don't fit 24 x 256 codes"):
        pack_int8_groups("w", codes, torch.ones(ROWS, 3))
    with pytest.raises(ValueError, match="zeros don't fit"):
        pack_int4_groups("w", codes, torch.ones(ROWS, 4), torch.ones(ROWS, 2))
    with pytest.raises(ValueError, match=r"int4 codes must be in 0 \.\.\. 15"):
        pack_int4_groups("w", codes - 1, torch.ones(ROWS, 4), torch.ones(ROWS, 4))
    with pytest.raises(ValueError, match=r"int8 codes must be in -128 \.\.\. 127"):
        pack_int8_groups("w", codes + 128, torch.ones(ROWS, 4))


@needs_library
@pytest.mark.parametrize("instruction_set", available_sets())
def test_the_engine_computes_with_them(instruction_set: str) -> None:
    """The most negative int8 code, too, which GGML's own quantiser never writes."""
    codes = torch.randint(-128, 128, (ROWS, COLUMNS), generator=torch.Generator().manual_seed(3))
    codes[:, ::2] = -128
    weight = pack_int8_groups("w", codes, scales(64))
    rows = np.random.default_rng(0).choice(np.array([-1, 1], dtype=np.float32), (5, COLUMNS))

    def record(graph: FusedBuilder, x: int) -> int:
        return graph.linear(x, "w")

    result = Rig(rows, record, weight, instruction_set=instruction_set).all_rows(5)
    np.testing.assert_allclose(result, rows.astype(np.float64) @ expand(weight).T, rtol=1e-5, atol=1e-4)
