"""Two real workers of unlike kinds, one of which computes prompts for the other: the answers of one worker alone."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.integration.gateway.test_gateway_prefill_apart import PROMPT, outcomes, pair
from tests.support.divergence import assert_same_tokens
from tests.support.eager_models import workload
from tests.support.stepping import Driver, logprobs_of

from polyfleet.engine.engine import Engine
from polyfleet.executors.eager import EagerExecutor
from polyfleet.loading.load import load_model
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import SequenceRequest
from polyfleet.wire.sampling import GREEDY

CPU = {"executor": "persistent"}
EAGER = {"executor": "eager", "dtype": "float32"}
INT8 = {"kv_dtype": "int8"}
# Of logits: what the coarser of two caches rounds, as docs/kv-transfer.md states it.
CASES = {
    "cpu to eager": (CPU, EAGER, 0.005),
    "eager to cpu": (EAGER, CPU, 0.005),
    "cpu to eager in int8": (CPU | INT8, EAGER | INT8, 0.005),
    "eager to cpu in int8": (EAGER | INT8, CPU | INT8, 0.005),
    "int8 to float16": (CPU | INT8, CPU, 0.15),
    "float16 to int8": (CPU, CPU | INT8, 0.15),
}


def flags(kind: dict[str, str]) -> list[str]:
    """As a worker's command line has them."""
    return [part for name, value in kind.items() for part in (f"--{name.replace('_', '-')}", value)]


def alone(path: str, kind: dict[str, str]) -> list[int]:
    """One engine's answer."""
    sizes = {"kv_cache_tokens": 8192, "max_sequences": 8, "threads": 1}
    engine = Engine.load(path, EngineOptions(device="cpu", **kind, **sizes))  # type: ignore[arg-type]
    engine.add(SequenceRequest("one", tuple(PROMPT), max_tokens=12, ignore_eos=True))
    tokens = list[int]()
    while engine.has_work:
        tokens += [token.token_id for update in engine.step() for token in update.tokens]
    engine.close()
    return tokens


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
async def test_a_prompt_computed_by_another_kind_of_worker(case: str, tmp_path: Path) -> None:
    """The same tokens, but where two were so near each other that what caches round may tell."""
    prefill, decode, tolerance = CASES[case]
    async with pair(tmp_path, (flags(prefill), flags(decode))) as fleet:
        found = await fleet.answer(PROMPT)
        assert found.usage.cached_tokens == 688
        assert await outcomes(fleet.decode, "fetched") == 1
    path = str(tmp_path / "tiny.gguf")
    model = load_model(path)

    def logits(token_ids: list[int]) -> NDArray[np.float64]:
        driver = Driver(EagerExecutor(workload(model)), 48)
        run = driver.begin(token_ids, num_logprobs=model.config.vocabulary_size)
        driver.step([(run, len(token_ids))])
        return logprobs_of(run.results[-1])

    assert_same_tokens(logits, PROMPT, GREEDY, alone(path, decode), found.ids(), tolerance)
