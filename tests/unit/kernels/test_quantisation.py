"""Dequantisation against the `gguf` package's numpy implementation, which is independent of it."""

import gguf
import numpy as np
import pytest
import torch
from tests.support.tiny_models import random_k_blocks

from polyfleet.kernels.weights import quantisation
from polyfleet.kernels.weights.quantisation import dequantise, row_bytes
from polyfleet.kernels.weights.weight import Weight, WeightFormat

# Those that the package can make blocks of; all others: test_ggml_blocks.py.
QUANTISED = [
    *(WeightFormat.Q4_0, WeightFormat.Q4_1, WeightFormat.Q5_0, WeightFormat.Q5_1, WeightFormat.Q8_0),
    *(WeightFormat.Q4_K, WeightFormat.Q6_K, WeightFormat.TQ1_0, WeightFormat.TQ2_0),
]
OWN = {WeightFormat.INT4, WeightFormat.INT8, WeightFormat.FP8}  # which the package does not know
ROWS, COLUMNS = 5, 512


def blocks_of(form: WeightFormat, seed: int = 0) -> torch.Tensor:
    """Random blocks [rows, bytes] in which every bit pattern of scales and quants can occur."""
    random = np.random.default_rng(seed)
    if form in (WeightFormat.Q4_K, WeightFormat.Q6_K):
        return torch.from_numpy(random_k_blocks(form.value, (ROWS, COLUMNS), random))
    values = random.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    return torch.from_numpy(gguf.quants.quantize(values, gguf.GGMLQuantizationType[form.value]))


@pytest.mark.parametrize("form", QUANTISED)
def test_equals_the_gguf_package(form: WeightFormat) -> None:
    data = blocks_of(form)
    weight = Weight("w", form, ROWS, COLUMNS, data)
    expected = gguf.quants.dequantize(data.numpy(), gguf.GGMLQuantizationType[form.value])
    found = dequantise(weight, torch.float32)
    assert found.shape == (ROWS, COLUMNS)
    assert float(np.abs(expected).max()) > 0.01
    np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("form", QUANTISED)
def test_chunks_and_dtypes_change_nothing_but_rounding(form: WeightFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = Weight("w", form, ROWS, COLUMNS, blocks_of(form))
    whole = dequantise(weight, torch.float32)
    monkeypatch.setattr(quantisation, "CHUNK_WEIGHTS", 2 * COLUMNS)
    assert torch.equal(dequantise(weight, torch.float32), whole)
    assert torch.equal(dequantise(weight, torch.bfloat16), whole.bfloat16())


@pytest.mark.parametrize("form", [form for form in WeightFormat if form not in OWN])
def test_row_bytes_are_those_of_the_gguf_package(form: WeightFormat) -> None:
    weights, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[form.value]]
    assert row_bytes(form, 1024) == 1024 // weights * size


def test_rows_that_blocks_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="rows of 100 weights can't be Q4_K, whose blocks hold 256"):
        row_bytes(WeightFormat.Q4_K, 100)


def test_dense_weights_are_not_copied() -> None:
    data = torch.randn(3, 4)
    weight = Weight("w", WeightFormat.F32, 3, 4, data)
    assert dequantise(weight, torch.float32).data_ptr() == data.data_ptr()
    assert dequantise(weight, torch.float16).dtype == torch.float16
