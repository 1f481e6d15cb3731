"""One flipped bit in a weight, the highest of an exponent: the canary finds it in every kind of weights."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.support.eager_models import workload
from tests.unit.engine.test_canary import sharp_folder

from polyfleet.engine.canary.canary import NUM_TOKENS, Canary, CanaryResult
from polyfleet.engine.canary.reference import canary_for, continue_greedily
from polyfleet.executors.eager import EagerExecutor
from polyfleet.kernels.weights.weight import Weight
from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel
from polyfleet.loading.progress import silent
from polyfleet.loading.quantise import quantise_folder

EXPONENT = 3, 0x40  # of a float32's bytes the last one, and its bit; blocks of codes begin with their scale


def flipped(weight: Weight, row: int) -> Weight:
    """In the first number of a row, or in the scale of its first block."""
    data = weight.data.clone()
    place, bit = EXPONENT
    data.view(torch.uint8).view(weight.rows, -1)[row, place] ^= bit
    return replace(weight, data=data)


def verdict(canary: Canary, model: LoadedModel) -> CanaryResult:
    executor = EagerExecutor.build(workload(model), silent)
    (answer,) = continue_greedily(executor, [canary.prompt_ids], NUM_TOKENS)
    executor.close()
    return canary.judge([token.token_id for token in answer.tokens], answer.error).result


@pytest.mark.parametrize("bits", [0, 8, 4])
def test_a_flipped_bit_is_found(tmp_path: Path, bits: int) -> None:
    """In embedding and head of a token that is asked for; a gate that it makes very negative silences one product."""
    path = sharp_folder(tmp_path / "dense")
    if bits:
        quantise_folder(path, tmp_path / "codes", bits, 0 if bits == 8 else 32, silent)
        path = tmp_path / "codes"
    model = load_model(path)
    canary = canary_for(model, 64)
    assert canary is not None
    assert canary.reference is not None
    assert verdict(canary, model) is CanaryResult.RIGHT
    rows = {"embedding": canary.prompt_ids[0], "lm_head": canary.reference.token_ids[0]}
    names = [name for name in model.weights if not name.startswith("layers.1.")]
    found = {}
    for name in names:
        weight = model.weights[name]
        last = weight.rows - 1
        wrong = replace(model, weights={**model.weights, name: flipped(weight, rows.get(name, last))})
        found[name] = verdict(canary, wrong)
    assert {weight.format.quantised for weight in model.weights.values()} == ({True, False} if bits else {False})
    assert len(found) == 12
    assert not [name for name, result in found.items() if result is CanaryResult.RIGHT]
