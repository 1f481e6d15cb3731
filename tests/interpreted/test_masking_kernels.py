"""Masks by Triton's kernels, interpreted: the same tokens as by torch's, rows that are not finite told apart."""

import numpy as np
import pytest
import torch

from polyfleet.kernels.triton.stepping import LOGITS, TritonMasking
from polyfleet.sampling.device import DeviceSampler
from polyfleet.sampling.draw import PARAMETERS, Draws, parameters
from polyfleet.sampling.masks import Masks, allow, no_tokens
from polyfleet.wire.sampling import SamplingParams

ROWS, ODD = 6, 4  # rows, and the first that is not finite


@pytest.mark.parametrize("temperatures", [(0.0,), (0.8,), (0.0, 0.8)])
@pytest.mark.parametrize("biases", [{}, {0: {1: 9.0}, 1: {3: 50.0}}])
@pytest.mark.parametrize("vocabulary", [300, LOGITS + 808])
def test_masked_rows_draw_what_torch_has_them_draw(
    temperatures: tuple[float, ...], biases: dict[int, dict[int, float]], vocabulary: int
) -> None:
    """Greedy or not, few allowed tokens in parts of their own, some rows free, some biased, some with logprobs."""
    torch.manual_seed(vocabulary)
    logits = torch.randn(ROWS, vocabulary).bfloat16()
    logits[ODD, 7], logits[ODD + 1, vocabulary - 2] = torch.nan, torch.inf
    bits = {row: no_tokens(vocabulary) for row in (0, 2, 3, 5)}
    for row, of_row in bits.items():
        allow(of_row, (3 * row + 1, 31, 32, vocabulary - 1))
    asked = [SamplingParams(temperature=temperatures[row % len(temperatures)], seed=row) for row in range(ROWS)]
    wanted = [parameters(each, 0, 2 if row == 3 else None) for row, each in enumerate(asked)]
    draws = Draws(np.array(wanted, dtype=PARAMETERS), np.arange(ROWS), np.arange(ROWS) + 5, Masks.of(bits, biases))
    device, before = torch.device("cpu"), logits.clone()
    plain = DeviceSampler(device, vocabulary).draw(logits, draws).to_host()
    found = DeviceSampler(device, vocabulary, TritonMasking()).draw(logits, draws).to_host()
    assert torch.equal(logits.view(torch.int16), before.view(torch.int16))
    assert found.finite.tolist() == plain.finite.tolist() == [True] * ODD + [False] * 2
    assert found.token_ids[:ODD].tolist() == plain.token_ids[:ODD].tolist()
    assert all(int(found.token_ids[row]) in (3 * row + 1, 31, 32, vocabulary - 1) for row in (2, 3))
    assert found.token_ids.min() >= 0
    assert found.token_ids.max() < vocabulary
    assert found.logprobs is not None
    assert plain.logprobs is not None
    np.testing.assert_array_equal(found.logprobs.top, plain.logprobs.top)
