"""The canary's prompt, its reference and the verdict on answers."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.tiny_models import TinyShape, random_tensors, write_folder

from polyfleet.engine.canary import reference as canary_reference
from polyfleet.engine.canary.canary import (
    NUM_TOKENS,
    TOLERANCE,
    Canary,
    CanaryReference,
    CanaryResult,
    CanaryVerdict,
    candidate_prompts,
    make_canary,
    most_decisive,
)
from polyfleet.engine.canary.later import CanaryLater, starts_later
from polyfleet.engine.canary.reference import Source, canary_for, compute_references, fingerprint, fits, shipped
from polyfleet.engine.engine import Engine
from polyfleet.engine.executor import Pending, StepOutput
from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel
from polyfleet.wire.options import EngineOptions

PROMPT = (5, 6, 7) * 4
SURE = CanaryReference(PROMPT, (5, 6, 7, 5), (3.0, 4.0, 2.0, 5.0))
CLOSE = replace(SURE, margins=(3.0, 4.0, TOLERANCE, 5.0))
SHARP = TinyShape(tied=False)


def sharp_folder(folder: Path) -> Path:
    """A random model whose logits lie so far apart that its canary is decisive, as a trained model's do."""
    tensors = random_tensors(SHARP)
    return write_folder(folder, SHARP, {**tensors, "lm_head.weight": np.float32(8) * tensors["lm_head.weight"]})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(sharp_folder(tmp_path_factory.mktemp("canary") / "model"))


def test_a_canary_is_a_greedy_sequence_behind_everybody() -> None:
    request = Canary(PROMPT, SURE).request()
    assert (request.prompt_ids, request.max_tokens, request.ignore_eos) == (PROMPT, NUM_TOKENS, True)
    assert request.sampling.greedy
    assert request.priority < 0


@pytest.mark.parametrize("vocabulary", [96, 32_000, 49_152, 151_936])
def test_prompts_repeat_short_patterns_inside_the_vocabulary(vocabulary: int) -> None:
    prompts = candidate_prompts(vocabulary)
    assert len(set(prompts)) == 4
    for prompt in prompts:
        assert prompt == prompt[:3] * 4
        assert len(set(prompt)) == 3
        assert 0 < min(prompt) < max(prompt) < vocabulary - 1


def test_the_right_answer_is_right_and_a_wrong_one_says_where() -> None:
    canary = Canary(PROMPT, SURE)
    assert canary.judge(SURE.token_ids).result is CanaryResult.RIGHT
    wrong = canary.judge((5, 6, 8, 5))
    assert wrong.result is CanaryResult.WRONG
    assert wrong.reason == (
        "The model answers wrongly on this device: the canary's token 3 is 8 instead of 7, which leads by 2.0."
    )
    assert canary.judge((5, 6)).result is CanaryResult.WRONG


def test_from_a_close_call_on_executors_may_differ() -> None:
    canary = Canary(PROMPT, CLOSE)
    assert CLOSE.num_decisive == 2
    assert canary.judge((5, 6, 99, 98)).result is CanaryResult.RIGHT
    assert canary.judge((5, 99, 7, 5)).result is CanaryResult.WRONG


def test_an_answer_that_ends_with_an_error_failed() -> None:
    verdict = Canary(PROMPT, SURE).judge((5,), "the model's output is not finite")
    assert verdict.result is CanaryResult.FAILED
    assert verdict.reason == "The canary could not be computed: the model's output is not finite."
    assert Canary(PROMPT).judge((), "boom.").result is CanaryResult.FAILED


def test_without_a_reference_nobody_knows() -> None:
    assert Canary(PROMPT).judge((1, 2, 3)).result is CanaryResult.NO_REFERENCE
    undecided = replace(SURE, margins=(TOLERANCE, 9.0, 9.0, 9.0))
    assert make_canary(PROMPT, undecided).reference is None
    assert make_canary(PROMPT, SURE).reference is SURE


def test_the_reference_that_decides_most_is_taken() -> None:
    bolder = replace(SURE, margins=(3.0, 4.0, 2.5, 5.0))
    assert most_decisive([CLOSE, SURE, bolder]) is bolder
    none = replace(SURE, margins=(0.1,) * 4)
    assert most_decisive([none, CLOSE]) is CLOSE


def test_the_references_margins_are_the_logits_of_a_forward_pass(model: LoadedModel) -> None:
    for found in compute_references(model, candidate_prompts(96)):
        again = compute_references(model, (found.prompt_ids + found.token_ids[:3],))[0]
        assert again.token_ids[:5] == found.token_ids[3:]
        assert again.margins[:5] == pytest.approx(found.margins[3:], abs=2e-3)


def test_the_fingerprint_follows_configuration_and_weights(model: LoadedModel) -> None:
    same = fingerprint(model)
    assert fingerprint(replace(model, path="elsewhere", config=replace(model.config, name="another"))) == same
    assert fingerprint(replace(model, config=replace(model.config, norm_eps=1e-6))) != same
    weight = model.weights["layers.1.down"]
    data = weight.data.clone()
    data[-1, 0] += 1
    assert fingerprint(replace(model, weights={**model.weights, "layers.1.down": replace(weight, data=data)})) != same


def test_a_known_model_has_its_shipped_reference(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary_reference, "shipped", lambda: {fingerprint(model): SURE})
    monkeypatch.setattr(canary_reference, "compute_references", lambda *_: pytest.fail("nothing is to be computed"))
    assert canary_for(model, 256) == Canary(PROMPT, SURE)


def test_what_is_shipped_is_decisive_to_the_last_token() -> None:
    assert shipped()
    for each in shipped().values():
        assert each.num_decisive == len(each.token_ids) == len(each.margins) == NUM_TOKENS


def test_an_unknown_model_gets_the_reference_of_the_host(model: LoadedModel) -> None:
    canary = canary_for(model, 256)
    assert canary is not None
    assert canary.reference == most_decisive(compute_references(model, candidate_prompts(96)))


def test_beside_an_accelerator_another_process_computes_the_same_reference(model: LoadedModel) -> None:
    computed = Source(None, computed=True)
    assert starts_later(computed, "cuda:0")
    assert starts_later(computed, "sample:0"), "a kind of device that torch does not know"
    assert not starts_later(computed, "cpu"), "its cores serve"
    assert not starts_later(Source(SURE, computed=False), "cuda:0")
    later = CanaryLater.of(model.path, model.config, 0, 20)
    assert later is not None
    first = later.now()
    assert (first.reference, first.awaited) == (None, True)
    later.wait(60)
    assert later.now() == canary_for(model, 256)
    later.close()
    assert CanaryLater.of(model.path, model.config, 0, 19) is None


def test_an_answer_that_cannot_be_computed_is_none_for_good(
    model: LoadedModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    later = CanaryLater(str(tmp_path / "gone"), 0, PROMPT)
    later.wait(60)
    assert later.now() == Canary(PROMPT)
    assert "gone: there is no such file or folder" in caplog.text
    stopped = CanaryLater(model.path, 0, PROMPT)
    stopped.close()
    assert stopped.now().reference is None


def test_what_computes_it_ends_with_the_process_that_wants_it() -> None:
    code = "from polyfleet.engine.canary import reference as it; it.end_with_parent(); import time; time.sleep(300)"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        assert process.stdin is not None
        process.stdin.close()  # as the system does for one that was killed
        assert process.wait(120) == 1
    finally:
        process.kill()


def test_a_model_that_the_host_cannot_hold_has_no_reference(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canary_reference, "fits", lambda model, free_bytes: False)
    assert canary_for(model, 256) == Canary(candidate_prompts(96)[0], None)
    size = 4 * sum(weight.rows * weight.columns for weight in model.weights.values())
    assert fits(model, 2 * size)
    assert not fits(model, 2 * size - 1)


def test_a_context_without_room_has_no_canary(model: LoadedModel) -> None:
    assert canary_for(model, 19) is None
    assert canary_for(model, 20) is not None


@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16"])
def test_a_loaded_engine_answers_its_canary_and_a_corrupted_one_does_not(tmp_path: Path, dtype: str) -> None:
    path = sharp_folder(tmp_path / "model")
    options = EngineOptions(device="cpu", dtype=dtype, threads=1, kv_cache_tokens=64, context_length=64, canary=True)
    engine = Engine.load(str(path), options)
    assert engine.canary is not None
    assert engine.canary.now().reference is not None
    assert answer(engine).result is CanaryResult.RIGHT
    assert engine.status().decode_tokens_per_second == 0.0, "a canary alone says nothing of the speed of requests"
    collect = engine._executor.collect

    def corrupted(pending: Pending, timeout: float) -> StepOutput:
        output = collect(pending, timeout)
        return replace(output, token_ids=(output.token_ids + 1) % 96)

    engine._executor.collect = corrupted  # type: ignore[method-assign]
    assert answer(engine).result is CanaryResult.WRONG


def answer(engine: Engine) -> CanaryVerdict:
    assert engine.canary is not None
    engine.add(engine.canary.now().request())
    tokens: list[int] = []
    while engine.has_work:
        for update in engine.step():
            tokens += [token.token_id for token in update.tokens]
    return engine.canary.now().judge(tokens)


def test_an_engine_that_nobody_serves_from_prepares_none(tmp_path: Path) -> None:
    options = EngineOptions(device="cpu", dtype="float32", threads=1, kv_cache_tokens=64, context_length=64)
    assert Engine.load(str(sharp_folder(tmp_path / "model")), options).canary is None


def test_dense_types_of_two_bytes_have_fingerprints(model: LoadedModel) -> None:
    weight = model.weights["norm"]
    halves = replace(model, weights={**model.weights, "norm": replace(weight, data=weight.data.to(torch.bfloat16))})
    assert fingerprint(halves) != fingerprint(model)
