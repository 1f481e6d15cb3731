"""GGML's block formats against the package `gguf`, bit for bit."""

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.support.cpu_graphs import HALVES, random_weight

from polyfleet.kernels.weights.ggml_blocks import PLAIN
from polyfleet.kernels.weights.ggml_lattices import LATTICES
from polyfleet.kernels.weights.packed import kept, pack_weights
from polyfleet.kernels.weights.quantisation import BLOCKS, dequantise
from polyfleet.kernels.weights.weight import Weight, WeightFormat

FORMS = [*PLAIN, *LATTICES]


def expected(weight: Weight) -> NDArray[np.float32]:
    """By the package; Q8_K, which it does not know, as ggml writes it."""
    data = weight.data.numpy()
    if weight.format is WeightFormat.Q8_K:
        blocks = data.reshape(weight.rows, -1, 292)
        scales = blocks[..., :4].copy().view(np.float32)
        return np.asarray((scales * blocks[..., 4:260].view(np.int8)).reshape(weight.rows, -1), dtype=np.float32)
    numbers = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[weight.format.value])
    return np.asarray(numbers, dtype=np.float32)


@pytest.mark.parametrize("form", FORMS)
def test_numbers_are_those_of_gguf_bit_for_bit(form: WeightFormat) -> None:
    weight = random_weight("w", form, 3, 512)
    found = dequantise(weight, torch.float32).numpy()
    np.testing.assert_array_equal(found.view(np.uint32), expected(weight).view(np.uint32))


def test_sizes_of_blocks_are_those_of_gguf() -> None:
    for form in FORMS:
        sizes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[form.value]]
        assert (BLOCKS[form].weights, BLOCKS[form].size) == sizes, form
    assert HALVES.keys() >= set(FORMS)


@pytest.mark.parametrize("form", [WeightFormat.Q8_0, WeightFormat.Q4_1, WeightFormat.Q6_K, WeightFormat.IQ4_XS])
def test_scales_that_are_not_finite_are_refused(form: WeightFormat) -> None:
    weight = random_weight("w", form, 3, 512)
    place = HALVES[form][0][-1]
    weight.data.view(3, -1, BLOCKS[form].size)[1, 0, place : place + 2] = torch.tensor([0, 0x7C], dtype=torch.uint8)
    with pytest.raises(ValueError, match="the tensor for 'w' holds numbers that are not finite"):
        dequantise(weight, torch.float32)
    if kind := kept([weight], "auto"):
        with pytest.raises(ValueError, match="the tensor for 'w' holds numbers that are not finite"):
            pack_weights(kind, [weight], torch.device("cpu"))
