"""What adapters' numbers lose as codes: half a step, and little beside what the weights that they change have lost."""

import gguf
import numpy as np
import pytest
import torch
from tests.support.adapter_codes import decoded

from polyfleet.kernels.cpu.adapters import adapter_bits, pack_rows
from polyfleet.kernels.weights.weight import WeightFormat


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("columns", [1, 4, 16, 17, 32, 33, 96, 112])
def test_a_row_is_half_a_step_off_at_most(bits: int, columns: int) -> None:
    rng = np.random.default_rng(columns)
    matrix = (rng.standard_normal((40, columns)) * 10.0 ** rng.integers(-6, 3, (40, 1))).astype(np.float32)
    matrix[3] = 0
    matrix[4] = -np.abs(matrix[4])  # whose largest number has the other sign
    found = decoded(pack_rows(torch.from_numpy(matrix), bits), matrix.shape, bits)
    largest = np.abs(matrix).max(axis=1, keepdims=True)
    step = largest * (2.0**-10 if bits == 16 else 2.0 ** (1 - bits))
    opposite = np.abs(matrix) > largest - step  # may have no code of its own; and scales have eight digits
    most = np.square(np.where(opposite, 1.26, 0.51) * step).sum(axis=1)
    assert (np.square(found - matrix).sum(axis=1) <= most).all()
    assert not found[3].any()


@pytest.mark.parametrize(
    ("form", "kind", "bits"),
    [
        (WeightFormat.Q4_0, gguf.GGMLQuantizationType.Q4_0, 4),
        (WeightFormat.Q4_1, gguf.GGMLQuantizationType.Q4_1, 4),
        (WeightFormat.Q8_0, gguf.GGMLQuantizationType.Q8_0, 8),
    ],
)
def test_what_they_lose_beside_the_weights(form: WeightFormat, kind: gguf.GGMLQuantizationType, bits: int) -> None:
    """Adapters a tenth as large as the weights, which is large, make the whole error less than a fiftieth larger."""
    rng = np.random.default_rng(1)
    weight, down, up = rng.standard_normal((576, 576)), rng.standard_normal((16, 576)), rng.standard_normal((576, 16))
    up *= 0.1 * np.linalg.norm(weight) / np.linalg.norm(up @ down)
    stored = gguf.quants.dequantize(gguf.quants.quantize(weight.astype(np.float32), kind), kind)
    codes = [decoded(pack_rows(torch.from_numpy(each).float(), bits), each.shape, bits) for each in (up, down)]
    assert adapter_bits(form) == bits
    lost, all_lost = stored - weight, stored + codes[0] @ codes[1] - weight - up @ down
    assert np.linalg.norm(all_lost) < 1.02 * np.linalg.norm(lost)
