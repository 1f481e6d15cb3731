"""PersistentKernel: the Engine's tokens, tensors that follow, and what each keyword means or why it is refused."""

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.tiny_models import TinyShape, write_folder

from polyfleet.backends import BackendRegistry, auto_configure_backend
from polyfleet.engine import Engine, EngineOptions, PersistentKernel, SequenceRequest
from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel
from polyfleet.models.registry import record

PROMPTS = ((3, 4, 5), (9, 8, 7, 6, 5, 4, 3))
LENGTH = 40
KERNEL: dict[str, Any] = {"backend": "cpu", "executor": "eager", "dtype": "float32", "max_seq_length": LENGTH}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_folder(tmp_path_factory.mktemp("kernel") / "model", TinyShape(context=128)))


@pytest.fixture(scope="module")
def model(path: str) -> LoadedModel:
    """Without end tokens of its own."""
    loaded = load_model(path)
    return replace(loaded, config=replace(loaded.config, end_token_ids=()))


@pytest.fixture(scope="module")
def expected(path: str) -> dict[tuple[int, ...], tuple[int, ...]]:
    """What an Engine generates up to LENGTH tokens, end tokens or not."""
    engine = Engine.load(path, EngineOptions(device="cpu", executor="eager", dtype="float32", context_length=LENGTH))
    found: dict[str, list[int]] = {}
    for number, prompt in enumerate(PROMPTS):
        engine.add(SequenceRequest(str(number), prompt, max_tokens=LENGTH - len(prompt), ignore_eos=True))
        found[str(number)] = []
    while engine.has_work:
        for update in engine.step():
            found[update.sequence_id] += (token.token_id for token in update.tokens)
    engine.close()
    return {prompt: tuple(found[str(number)]) for number, prompt in enumerate(PROMPTS)}


@pytest.fixture
def kernels(model: LoadedModel) -> Iterator["Kernels"]:
    made = Kernels(model)
    yield made
    for each in made.kernels:
        each.close()


class Kernels:
    """Makes kernels of one model, and closes them behind the test."""

    def __init__(self, model: LoadedModel) -> None:
        self.model = model
        self.kernels: list[PersistentKernel] = []

    def make(self, **config: Any) -> PersistentKernel:
        self.kernels.append(PersistentKernel(self.model, **{**KERNEL, **config}))
        return self.kernels[-1]


def test_greedy_tokens_equal_the_engines(kernels: Kernels, expected: dict[Any, Any]) -> None:
    kernel = kernels.make()
    for prompt in PROMPTS:
        assert kernel.generate(prompt) == expected[prompt]
        assert kernel.generate(prompt, max_tokens=4) == expected[prompt][:4]


@pytest.mark.parametrize("tensors", ["numpy", "torch"])
def test_meta_tensors_follow_each_token(kernels: Kernels, expected: dict[Any, Any], tensors: str) -> None:
    step, tokens = np.zeros(2, dtype=np.int32), np.zeros((2, LENGTH), dtype=np.int64)
    for row, prompt in enumerate(PROMPTS):
        tokens[row, : len(prompt)], step[row] = prompt, len(prompt) - 1
    given = [step, tokens] if tensors == "numpy" else [torch.from_numpy(step), torch.from_numpy(tokens)]
    kernel = kernels.make(meta_tensors=given)
    kernel.begin()
    seen = []
    going = True
    while going:
        going = kernel.step()
        seen.append(step.tolist())
        for row, prompt in enumerate(PROMPTS):
            whole = prompt + expected[prompt]
            assert tokens[row].tolist() == [*whole[: step[row] + 1], *[0] * (LENGTH - 1 - step[row])]
    assert seen[-1] == [LENGTH - 1, LENGTH - 1]
    assert len(seen) > LENGTH - 8  # it was written as tokens came, not at the end
    before = tokens.copy()
    kernel()  # all rows are full: nothing to do
    assert (tokens == before).all()


def test_calling_continues_what_stands_there(kernels: Kernels, expected: dict[Any, Any]) -> None:
    whole = PROMPTS[0] + expected[PROMPTS[0]]
    step, tokens = torch.tensor(9), torch.zeros(20, dtype=torch.int32)  # one sequence, a dimension less
    tokens[:10] = torch.tensor(whole[:10])
    kernels.make(meta_tensors=[step, tokens])()
    assert tokens.tolist() == list(whole[:20])
    assert step.item() == 19


def test_generate_writes_the_first_row(kernels: Kernels, expected: dict[Any, Any]) -> None:
    step, tokens = np.full(1, 7), np.full((1, 12), 5)
    kernel = kernels.make(meta_tensors=[step, tokens])
    assert kernel.generate(PROMPTS[0], max_tokens=3) == expected[PROMPTS[0]][:3]
    assert tokens[0, :6].tolist() == [*PROMPTS[0], *expected[PROMPTS[0]][:3]]
    assert step.tolist() == [5]
    assert len(kernel.generate(PROMPTS[0])) == 12 - 3


def test_the_end_token_ends(kernels: Kernels, expected: dict[Any, Any]) -> None:
    tokens = expected[PROMPTS[1]]
    end = next(token for token in tokens if token != tokens[0])
    assert kernels.make(eos_token_id=end).generate(PROMPTS[1]) == tokens[: tokens.index(end)]


def test_without_an_end_token_the_models_own_end(model: LoadedModel, expected: dict[Any, Any]) -> None:
    tokens = expected[PROMPTS[1]]
    end = next(token for token in tokens if token != tokens[0])
    ending = replace(model, config=replace(model.config, end_token_ids=(end,)))
    with PersistentKernel(ending, **KERNEL) as kernel:
        assert kernel.generate(PROMPTS[1]) == tokens[: tokens.index(end)]
    other = next(token for token in range(90) if token not in tokens)
    with PersistentKernel(ending, **KERNEL, eos_token_id=other) as kernel:
        assert kernel.generate(PROMPTS[1]) == tokens


def test_a_recorded_graph_decodes(model: LoadedModel, expected: dict[Any, Any]) -> None:
    graph = record(model.config, model.weights)
    with PersistentKernel(graph, weights=model.weights, **KERNEL) as kernel:
        assert kernel.generate(PROMPTS[0]) == expected[PROMPTS[0]]
        assert kernel.engine.facts.vocabulary_size == model.config.vocabulary_size


def test_a_configuration_of_this_machine_spreads_into_it(path: str) -> None:
    config = auto_configure_backend()
    with PersistentKernel(path, **config, max_seq_length=64) as kernel:
        assert kernel.engine.options.context_length == 64
        assert kernel.engine.options.max_sequences == config["max_sequences"]
        assert len(kernel.generate(PROMPTS[0], max_tokens=2)) <= 2
        assert kernel.implementations()


def test_all_keywords_with_the_values_they_may_have(kernels: Kernels, expected: dict[Any, Any]) -> None:
    step, tokens = np.zeros(1, dtype=np.int32), np.zeros((1, LENGTH), dtype=np.int64)
    kernel = kernels.make(
        world_size=1,
        mpi_rank=0,
        num_workers=1,
        num_local_schedulers=1,
        num_remote_schedulers=0,
        eos_token_id=95,
        meta_tensors=[step, tokens],
        profiler_tensor=None,
        spec_decode_config=None,
    )
    assert kernel.engine.options.threads == 1
    assert kernel.engine.options.max_sequences == 1
    assert kernel.generate(PROMPTS[0], max_tokens=2) == expected[PROMPTS[0]][:2]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "ranks": ({"world_size": 2}, "world_size must be 1, not 2: a kernel is one process"),
    "rank": ({"mpi_rank": 1}, "mpi_rank must be 0, not 1: a kernel is one process"),
    "local": ({"num_local_schedulers": 0}, "num_local_schedulers must be 1 or more, not 0: the engine's own Batcher"),
    "remote": ({"num_remote_schedulers": 1}, "num_remote_schedulers must be 0, not 1: there are no other devices"),
    "profiler": ({"profiler_tensor": [0]}, "profiler_tensor must be None, not [0]: whole steps are timed"),
    "drafts": ({"spec_decode_config": {"k": 4}}, "spec_decode_config must be None, not {'k': 4}: the option"),
    "profiler array": ({"profiler_tensor": np.zeros(2)}, "profiler_tensor must be None, not array([0., 0.]): whole"),
    "backend": ({"backend": 3}, "a backend is named by a text or a BackendType, not by 3"),
    "contradiction": ({"threads": 1, "num_workers": 2}, "num_workers (2) and threads (1) mean the same: give one"),
    "lengths": ({"context_length": 9}, f"max_seq_length ({LENGTH}) and context_length (9) mean the same: give one"),
    "workers": ({"num_workers": -1}, "num_workers must be a whole number of 0 or more, not -1"),
    "length": ({"max_seq_length": 1.5}, "max_seq_length must be a whole number of 0 or more, not 1.5"),
    "too long": ({"max_seq_length": 999}, "context_length: must be at most the model's 128, not 999"),
    "unknown": ({"num_wings": 2}, "num_wings: is no option: choose from backend, dtype"),
    "end": ({"eos_token_id": 96}, "eos_token_id must be 0 to 95, not 96"),
    "end in words": ({"eos_token_id": "2"}, "eos_token_id must be 0 to 95, not '2'"),
    "half an end": ({"eos_token_id": 1.5}, "eos_token_id must be 0 to 95, not 1.5"),
    "no tensors": ({"meta_tensors": 5}, "meta_tensors must be [step, tokens], two arrays"),
    "read-only": (
        {"meta_tensors": [np.zeros(1, int), np.broadcast_to(np.int64(0), (1, 8))]},
        "meta_tensors must be writable: they follow each token",
    ),
    "one tensor": ({"meta_tensors": [np.zeros(1, int)]}, "meta_tensors must be [step, tokens], two arrays"),
    "floats": (
        {"meta_tensors": [np.zeros(1), np.zeros((1, 8), int)]},
        "meta_tensors must be [step, tokens], two arrays",
    ),
    "shapes": (
        {"meta_tensors": [np.zeros(2, int), np.zeros((1, 8), int)]},
        "meta_tensors must be step [n] and tokens [n, length], not [2] and [1, 8]",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what: str, kernels: Kernels) -> None:
    config, sentence = REFUSED[what]
    with pytest.raises(ValueError, match=r".") as caught:
        kernels.make(**config)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_workers_are_a_cpus_alone(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BackendRegistry, "get", lambda name: type("Backend", (), {"type": name}))
    with pytest.raises(ValueError, match="num_workers must be 0 on cuda:1, not 96: only a CPU's threads are counted"):
        PersistentKernel(path, backend="cuda:1", num_workers=96)


def test_models_and_weights_that_do_not_go_together(model: LoadedModel) -> None:
    graph = record(model.config, model.weights)
    for given, weights in ((graph, None), (model, model.weights)):
        with pytest.raises(ValueError, match="a recorded graph needs its weights, and only a graph takes some"):
            PersistentKernel(given, weights=weights, **KERNEL)
    with pytest.raises(ValueError, match="max_seq_length must be over 0 for a recorded graph"):
        PersistentKernel(graph, weights=model.weights, backend="cpu")


def test_prompts_and_calls_that_do_not_fit(kernels: Kernels) -> None:
    kernel = kernels.make()
    for prompt in ((), range(LENGTH)):
        with pytest.raises(ValueError, match=f"a prompt must have 1 to {LENGTH - 1} tokens, not {len(prompt)}"):
            kernel.generate(tuple(prompt))
    with pytest.raises(ValueError, match="prompt_ids: must be below the vocabulary size 96, not 96"):
        kernel.generate((96,))
    with pytest.raises(ValueError, match="max_tokens must be 0 or more, not -1"):
        kernel.generate((1,), max_tokens=-1)
    with pytest.raises(ValueError, match="a kernel without meta_tensors has nothing to continue"):
        kernel()
    assert len(kernel.generate((1,), max_tokens=1)) == 1  # still usable


def test_a_row_that_does_not_fit_starts_none(kernels: Kernels) -> None:
    step, tokens = np.zeros(2, dtype=np.int32), np.array([[1] * 8, [96] * 8])
    kernel = kernels.make(meta_tensors=[step, tokens])
    with pytest.raises(ValueError, match="vocabulary size"):
        kernel.begin()
    step[0] = 8
    with pytest.raises(ValueError, match="step must be 0 to 7, the index of the last token, not 8"):
        kernel.begin()
    step[:], tokens[1] = 0, 2
    kernel.begin()
    with pytest.raises(ValueError, match="sequences are under way"):
        kernel.begin()
    while kernel.step():
        pass
    assert step.tolist() == [7, 7]


def test_the_vulkan_executor_decodes_alike(
    model: LoadedModel, expected: dict[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wgpu", reason="the vulkan extra is not installed")
    from polyfleet.backends.registry import BackendRegistry

    monkeypatch.setitem(os.environ, "POLYFLEET_VULKAN_SOFTWARE", "1")
    if BackendRegistry.find("vulkan") is None:
        pytest.skip("no Vulkan device: apt install mesa-vulkan-drivers libvulkan1")
    with PersistentKernel(model, backend="vulkan", max_seq_length=LENGTH) as kernel:
        assert kernel.generate(PROMPTS[0], max_tokens=8) == expected[PROMPTS[0]][:8]
        assert kernel.engine.facts.executor == "vulkan"
