"""Quantised folders against transformers in float32, which is given what their weights stand for."""

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.cpu_graphs import needs_library
from tests.support.quantised_folders import SHAPE, WAYS, write_quantised
from tests.support.stepping import Driver, logprobs_of
from tests.support.tiny_models import write_folder

from polyfleet.backends.protocol import KernelCapabilities
from polyfleet.engine import loader
from polyfleet.engine.choosing.executors import Workload
from polyfleet.engine.engine import Engine
from polyfleet.engine.loader import load
from polyfleet.executors.eager import EagerExecutor
from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel
from polyfleet.models.registry import record
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import SequenceRequest

IDS = np.random.default_rng(5).integers(0, SHAPE.vocabulary, 24).tolist()
CAPABILITIES = KernelCapabilities(frozenset({"float32"}), "float32")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(write_folder(tmp_path_factory.mktemp("theirs"), SHAPE), dtype=torch.float32)


SOME = ("gptq with zeros", "gptq in another order", "awq", "int4 groups with zeros", "int8 channels", "fp8 tiles")


@pytest.mark.parametrize("name", SOME)
def test_logits(name: str, theirs: Any, tmp_path: Path) -> None:
    dense = write_quantised(tmp_path / "model", WAYS[name])
    if WAYS[name].form == "F16":  # dequantised to half precision
        dense |= {key: each.astype(np.float16).astype(np.float32) for key, each in dense.items() if "_proj." in key}
    theirs.load_state_dict({key: torch.from_numpy(tensor) for key, tensor in dense.items()})
    with torch.inference_mode():
        expected = torch.log_softmax(theirs(torch.tensor([IDS])).logits[0, -1].double(), dim=-1).numpy()
    model = load_model(tmp_path / "model")
    graph = record(model.config, model.weights)
    executor = EagerExecutor(Workload(graph, model.weights, EngineOptions(), "cpu", "float32", CAPABILITIES))
    steps = Driver(executor, 8, 16)
    run = steps.begin(IDS, num_logprobs=SHAPE.vocabulary)
    steps.step([(run, len(IDS))])
    np.testing.assert_allclose(logprobs_of(run.results[-1]), expected, atol=5e-5, rtol=0)


@needs_library
@pytest.mark.parametrize("name", ["gptq with zeros", "int8 channels", "fp8 tiles"])
def test_the_cpu_library_keeps_them(name: str, theirs: Any, tmp_path: Path) -> None:
    """Entering rows are rounded to int8 there. What was in memory for its weights is let go."""
    dense = write_quantised(tmp_path / "model", WAYS[name])
    theirs.load_state_dict({key: torch.from_numpy(tensor) for key, tensor in dense.items()})
    with torch.inference_mode():
        expected = torch.log_softmax(theirs(torch.tensor([IDS])).logits[0].double(), dim=-1)
    parts = load(str(tmp_path / "model"), EngineOptions(device="cpu", executor="persistent"), lambda *_: None)
    assert all(len(each.data) == 0 for each in parts.model.weights.values() if each.format.quantised)
    with closing(Engine.of(parts)) as engine:
        assert f"{WAYS[name].form}: " in engine.implementations()["linear"]
        engine.add(SequenceRequest("a", tuple(IDS), max_tokens=1, prompt_logprobs=0))
        found = [token.logprob for _ in range(len(IDS)) for update in engine.step() for token in update.prompt_logprobs]
    wanted = expected[:-1].gather(1, torch.tensor(IDS[1:])[:, None]).flatten()
    np.testing.assert_allclose(found, wanted, atol=0.15, rtol=0)


@needs_library
@pytest.mark.parametrize("canary", [False, True])
def test_blocks_go_one_by_one_as_they_are_packed(canary: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless a canary's answer is to be computed from them, once the model is served."""
    write_quantised(tmp_path / "model", WAYS["int8 channels"])
    models, left = list[LoadedModel](), list[int]()

    def read(*arguments: Any, **options: Any) -> LoadedModel:
        models.append(load_model(*arguments, **options))
        return models[0]

    def look(share: float, phase: str) -> None:
        if phase.startswith("preparing"):
            left.append(sum(len(each.data) for each in models[0].weights.values() if each.format.quantised))

    monkeypatch.setattr(loader, "load_model", read)
    options = EngineOptions(device="cpu", executor="persistent", canary=canary)
    parts = load(str(tmp_path / "model"), options, look)
    parts.executor.close()
    assert (left[-1] > 0) == canary
    assert not any(len(each.data) for each in models[0].weights.values() if each.format.quantised)
    assert not canary or (parts.canary is not None and parts.canary.now().reference is not None)
