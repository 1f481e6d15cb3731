"""What caches in 8 bits do to a continuation elsewhere is what their rounding does: no more than in float64.

A reference computes in float64 throughout, but for its keys and values, which it rounds as an engine's cache does.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.support.exchanging import (
    KINDS,
    PROMPT,
    TENANT,
    VOCABULARY,
    Kind,
    answer,
    engine,
    logprobs,
    over,
    workload_of,
)
from tests.support.numpy_executor import NumpyExecutor, Rows
from tests.support.tiny_models import TinyShape, write_folder

from polyfleet.engine.engine import Engine
from polyfleet.kernels.cached import BYTES, CODES, loaded, stored
from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel
from polyfleet.wire.answers import SampledToken

# What numbers that are rounded otherwise come to, where float32 has another last bit; what rounding all costs at most.
EXACT, COST = 0.01, {"fp8": 0.6, "int8": 0.15, "auto": 0.01}
HELD = {"fp8": BYTES, "int8": CODES, "float16": torch.float16}
PAIRS = [
    *(("eager", "eager_fp8"), ("eager_fp8", "eager"), ("cpu", "eager_fp8"), ("eager_fp8", "cpu")),
    *(("eager", "eager_int8"), ("eager_int8", "eager"), ("cpu", "cpu_int8"), ("cpu_int8", "cpu")),
    *(("eager_fp8", "eager_fp8"), ("cpu_int8", "eager_int8"), ("eager_fp8", "cpu_int8"), ("cpu", "eager")),
]


class Rounding(NumpyExecutor):
    """Keys and values as a cache of these numbers holds them, in float64."""

    held: torch.dtype | None = None

    def import_blocks(self, blocks: Sequence[int], caches: Sequence[NDArray[Any]]) -> None:
        super().import_blocks(blocks, [self._rounded(each) for each in caches])

    def _write(self, cache: int, keys: NDArray[Any], values: NDArray[Any], rows: list[Rows]) -> None:
        heads = (-1, self._caches[cache].shape[-1])
        keys, values = (self._rounded(each.reshape(heads)).reshape(each.shape) for each in (keys, values))
        super()._write(cache, keys, values, rows)

    def _rounded(self, numbers: NDArray[Any]) -> NDArray[np.float64]:
        wide = torch.from_numpy(np.array(numbers, dtype=np.float32))
        if self.held is None:
            return numbers.astype(np.float64)
        return loaded(stored(wide, torch.empty(0, dtype=self.held)), torch.float32).double().numpy()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(str(write_folder(tmp_path_factory.mktemp("rounding"), TinyShape(vocabulary=VOCABULARY))))


def reference(model: LoadedModel, kind: Kind) -> Engine:
    workload = workload_of(model, kind._replace(executor="eager", kv_dtype="auto"))
    executor = Rounding(workload.graph, workload.weights)
    executor.held = HELD.get(kind.stores if kind.kv_dtype == "auto" else kind.kv_dtype)
    return over(executor, workload, model)


def continued(there: Engine, here: Engine) -> list[SampledToken]:
    """What `here` makes of a prompt that `there` has computed."""
    answer(there)
    assert here.import_prefix(there.export_prefix(PROMPT, TENANT), TENANT) == 64
    tokens, _ = answer(here)
    for each in (there, here):
        each.close()
    return tokens


def distance(mine: list[SampledToken], theirs: list[SampledToken]) -> float:
    """Of log probabilities at most, as long as both have read the same tokens."""
    worst = 0.0
    for one, other in zip(mine, theirs, strict=True):
        worst = max(worst, float(np.abs(np.subtract(logprobs(one), logprobs(other))).max()))
        if one.token_id != other.token_id:
            break
    return worst


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=["-".join(pair) for pair in PAIRS])
def test_a_continuation_differs_by_what_rounding_costs(model: LoadedModel, source: str, target: str) -> None:
    """The engines' numbers are the reference's, so all that tells them from unrounded ones is the caches' rounding."""
    kinds = [KINDS[source], KINDS[target]]
    found = continued(engine(model, source), engine(model, target))
    rounded = continued(*(reference(model, kind) for kind in kinds))
    assert [each.token_id for each in found] == [each.token_id for each in rounded]
    assert distance(found, rounded) < EXACT
    unrounded, _ = answer(reference(model, KINDS["eager"]))
    cost = distance(rounded, unrounded)
    assert cost < max(COST[kind.kv_dtype] for kind in kinds)
    assert cost > EXACT or {kind.kv_dtype for kind in kinds} == {"auto"}
