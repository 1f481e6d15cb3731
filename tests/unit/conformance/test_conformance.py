"""Conformance finds a backend that computes wrongly, skips what a device can't have, and reports both."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from polyfleet.backends.cpu import CpuBackend
from polyfleet.backends.protocol import DeviceTelemetry, Health
from polyfleet.cli.main import cli
from polyfleet.conformance import checks
from polyfleet.conformance.__main__ import check
from polyfleet.conformance.checks import Failed, Skipped, Subject
from polyfleet.conformance.collectives import collectives
from polyfleet.conformance.report import CheckResult, ConformanceReport, Outcome
from polyfleet.engine.choosing.executors import Workload, find
from polyfleet.engine.executor import StepOutput
from polyfleet.engine.step.plan import StepPlan
from polyfleet.graph.ops import OpKind
from polyfleet.wire.answers import SampledToken

Change = Callable[[list[int], StepOutput], StepOutput]  # positions of the tokens drawn, and what they came to


@pytest.fixture(scope="module")
def subject() -> Subject:
    backend = CpuBackend()
    (info,) = backend.devices()
    return Subject(backend, info, backend.capabilities(info), "cpu")


@pytest.fixture
def shaders(subject: Subject) -> Subject:
    return replace(subject, capabilities=replace(subject.capabilities, executors=("vulkan",)))


class Altered:
    """An executor whose tokens a test changes."""

    def __init__(self, executor: Any, change: Change) -> None:
        self._executor, self._change = executor, change

    def launch(self, plan: StepPlan) -> Any:
        self._positions = plan.draw_positions.tolist()
        return self._executor.launch(plan)

    def collect(self, pending: Any, timeout: float) -> StepOutput:
        return self._change(self._positions, self._executor.collect(pending, timeout))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)


def build_by(monkeypatch: pytest.MonkeyPatch, build: Callable[..., Any]) -> None:
    """Have executors built by `build(kind, workload, progress)`, but the first, which is the reference."""
    numbers = count()

    class Kind:
        def __init__(self, *args: str) -> None:
            self._kind = find(*args)

        def build(self, workload: Workload, progress: Any) -> Any:
            return build(self._kind, workload, progress) if next(numbers) else self._kind.build(workload, progress)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._kind, name)

    monkeypatch.setattr(checks, "find", Kind)


def alter(monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
    """Change what they come to."""
    build_by(monkeypatch, lambda kind, *given: Altered(kind.build(*given), change))


def test_every_executor_of_the_cpu_gives_the_references_tokens(subject: Subject) -> None:
    detail = checks.greedy_tokens(subject)
    assert "eager: 60 of 60 tokens equal the CPU reference" in detail
    assert "persistent" in detail


def test_a_wrong_token_fails(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong_behind_8_tokens(positions: list[int], output: StepOutput) -> StepOutput:
        return replace(output, token_ids=np.where(np.array(positions) == 8, 511, output.token_ids))

    alter(monkeypatch, wrong_behind_8_tokens)
    with pytest.raises(Failed, match=r"prompt 0 differs from the CPU reference at token 3, which leads by \d"):
        checks.greedy_tokens(subject)


@pytest.mark.parametrize("name", ["embedding", "layers.0.k", "layers.1.mlp_norm", "layers.2.down", "lm_head"])
def test_a_flipped_bit_in_a_weight_fails(subject: Subject, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The highest one of its exponent."""

    def build(kind: Any, workload: Workload, progress: Any) -> Any:
        weight = workload.weights[name]
        data = weight.data.clone()
        data.view(torch.int32)[checks.PROMPTS[1][0] % weight.rows, 42] ^= 1 << 30
        return kind.build(replace(workload, weights={**workload.weights, name: replace(weight, data=data)}), progress)

    build_by(monkeypatch, build)
    with pytest.raises(Failed, match=r"differs from the CPU reference|is not finite"):
        checks.greedy_tokens(subject)


def test_a_step_that_fails_says_why(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    alter(monkeypatch, lambda _, output: replace(output, faults=np.ones_like(output.faults)))
    with pytest.raises(Failed, match="a step failed: the model's output is not finite"):
        checks.greedy_tokens(subject)


def test_only_close_calls_may_differ() -> None:
    def token(token_id: int, lead: float) -> SampledToken:
        return SampledToken(token_id, -1.0, (token_id, 99), (-1.0, -1.0 - lead))

    reference = [token(1, 2.0), token(2, checks.CLOSE_CALL / 2), token(3, 2.0)]
    assert checks._agreeing(0, reference, [SampledToken(each) for each in (1, 2, 3)]) == 3
    assert checks._agreeing(0, reference, [SampledToken(each) for each in (1, 9, 8)]) == 1
    with pytest.raises(Failed, match="at token 2"):
        checks._agreeing(0, reference, [SampledToken(each) for each in (1, 2, 8)])


def test_too_few_equal_tokens_fail_though_each_difference_is_a_close_call(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong_behind_8_tokens(positions: list[int], output: StepOutput) -> StepOutput:
        return replace(output, token_ids=np.where(np.array(positions) == 8, 511, output.token_ids))

    alter(monkeypatch, wrong_behind_8_tokens)
    monkeypatch.setattr(checks, "CLOSE_CALL", 1000.0)
    monkeypatch.setattr(checks, "LEAST_EQUAL", 1.0)
    with pytest.raises(Failed, match=r": \d+ of 60 tokens equal the CPU reference, which is too few"):
        checks.greedy_tokens(subject)
    monkeypatch.setattr(checks, "LEAST_EQUAL", 0.1)
    assert "of 60 tokens equal" in checks.greedy_tokens(subject)


def test_no_executor_at_all_fails(shaders: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    class Absent:
        def refuses(self, workload: Workload) -> str:
            return "no driver"

    monkeypatch.setattr(checks, "find", lambda name, target: Absent() if name == "vulkan" else find(name, target))
    with pytest.raises(Failed, match=r"vulkan is not here \(no driver\)"):
        checks.greedy_tokens(shaders)


@pytest.mark.parametrize("run", [checks.dtypes, checks.operators, collectives])
def test_what_needs_torch_is_skipped_on_a_device_that_is_none_of_torchs(run: Any, shaders: Subject) -> None:
    with pytest.raises(Skipped, match="torch has no such device"):
        run(shaders)


def test_an_operator_that_is_off_fails(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(checks.TOLERANCES, torch.float32, 1e-12)
    with pytest.raises(Failed, match=r"in torch\.float32 is off by"):
        checks.operators(replace(subject, capabilities=replace(subject.capabilities, dtypes=frozenset({"float32"}))))


def test_every_op_is_compared_but_those_that_give_no_numbers_or_join_others(subject: Subject) -> None:
    """What a lowering makes of compared ops, for few rows, is compared by the greedy tokens."""
    compared = set(checks._operator_errors(subject, torch.float32))
    left = {OpKind.ARGMAX, OpKind.CACHE_WRITE, OpKind.LATENT_WRITE, OpKind.ALL_REDUCE, OpKind.ALL_GATHER}
    left |= {OpKind.ADAPT, OpKind.SHRINK}  # which come after a model is loaded
    joined = {OpKind.GAIN, OpKind.LINEAR_ADD, OpKind.NORM_LINEAR, OpKind.NORM_SILU_MUL, OpKind.ROPE_ATTENTION}
    assert {kind.value for kind in OpKind} - compared == {kind.value for kind in left | joined}


def test_an_unhealthy_device_fails(subject: Subject) -> None:
    class Hot(CpuBackend):
        def telemetry(self) -> tuple[DeviceTelemetry, ...]:
            return (DeviceTelemetry(0, Health.UNHEALTHY, "on fire"),)

    with pytest.raises(Failed, match="unhealthy: 0: on fire"):
        checks.telemetry(replace(subject, backend=Hot()))


def test_whatever_a_driver_throws_is_a_result(subject: Subject) -> None:
    def explode(_: Subject) -> str:
        raise OSError("bus error\nand more")

    result = check(subject, explode)
    assert (result.name, result.outcome, result.detail) == ("explode", Outcome.FAILED, "OSError: bus error")


def test_a_report_travels_as_json_and_reads_as_text() -> None:
    rows = (CheckResult("devices", Outcome.PASSED, "one"), CheckResult("memory", Outcome.SKIPPED, "a host's"))
    report = ConformanceReport("cpu", "EPYC (avx2)", {"python": "3.11"}, rows)
    assert ConformanceReport.from_json(json.loads(json.dumps(report.to_json()))) == report
    assert report.passed
    lines = report.to_text().splitlines()
    assert lines[0] == "Conformance of cpu on EPYC (avx2)"
    assert lines[-1] == "1 passed, 0 failed, 1 skipped"
    failed = replace(report, checks=(*rows, CheckResult("dtypes", Outcome.FAILED, "bad")))
    assert not failed.passed


def test_an_absent_backend_is_refused_with_its_reason() -> None:
    done = CliRunner().invoke(cli, ["conformance", "--backend", "ascend"])
    assert done.exit_code == 3
    assert done.stderr.splitlines()[0].endswith(
        "Backend ascend is not available: no Huawei Ascend device is present (PCI vendor 0x19e5)."
    )
