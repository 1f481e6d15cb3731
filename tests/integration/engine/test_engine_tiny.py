"""The real executor under random company, on a tiny model, against transformers; and generation offline."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.support.batching import Outcomes, run_engine
from tests.support.divergence import TOLERANCE, assert_same_tokens
from tests.support.tiny_models import TinyShape, write_folder

from polyfleet.engine import Engine, EngineOptions, FinishReason, SequenceRequest, generate_offline
from polyfleet.engine.loader import EngineParts, load
from polyfleet.loading.model import ModelFileError
from polyfleet.wire.limits import FieldError
from polyfleet.wire.sampling import SamplingParams

SHAPE = TinyShape()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("tiny"), SHAPE)


@pytest.fixture(scope="module")
def loaded(folder: Path) -> EngineParts:
    options = EngineOptions(
        device="cpu", dtype="float32", kv_cache_tokens=160, block_size=4, threads=1, max_sequences=6
    )
    return load(str(folder), options, lambda share, phase: None)


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def next_logits(reference: Any, token_ids: list[int]) -> NDArray[np.float64]:
    with torch.inference_mode():
        row: torch.Tensor = reference(torch.tensor([token_ids])).logits[0, -1]
    return row.double().numpy()


def compute(loaded: EngineParts, requests: list[SequenceRequest], **changes: Any) -> Outcomes:
    engine = Engine(loaded.executor, loaded.model.config, replace(loaded.options, **changes))
    return run_engine(engine, requests)


REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 20),  # length of the common beginning
        st.lists(st.integers(3, SHAPE.vocabulary - 1), min_size=1, max_size=12),
        st.integers(1, 20),  # tokens wanted
        st.sampled_from((0.0, 0.7, 1.5)),  # temperature
        st.integers(-1, 1),  # priority
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shapes=REQUESTS, step_tokens=st.integers(7, 40), max_sequences=st.integers(1, 6), prefix_cache=st.booleans())
def test_tokens_do_not_depend_on_the_company(
    loaded: EngineParts,
    reference: Any,
    shapes: list[tuple[int, list[int], int, float, int]],
    step_tokens: int,
    max_sequences: int,
    prefix_cache: bool,
) -> None:
    requests = [
        SequenceRequest(
            f"s{number}",
            (5,) * same + tuple(tail),
            SamplingParams(temperature=temperature, seed=number),
            max_tokens=max_tokens,
            ignore_eos=True,
            priority=priority,
        )
        for number, (same, tail, max_tokens, temperature, priority) in enumerate(shapes)
    ]
    together = compute(
        loaded, requests, step_tokens=step_tokens, max_sequences=max_sequences, prefix_cache=prefix_cache
    )
    for request in requests:
        alone = compute(loaded, [request], prefix_cache=False)[request.sequence_id].token_ids
        mixed = together[request.sequence_id].token_ids
        assert len(mixed) == request.max_tokens
        assert_same_tokens(
            lambda ids: next_logits(reference, ids),
            request.prompt_ids,
            request.sampling,
            mixed,
            alone,
            TOLERANCE["float32"],
        )


def test_offline_generation_is_what_transformers_generates(folder: Path, reference: Any) -> None:
    prompt = (7, 8, 9, 10)
    wanted = reference.generate(
        torch.tensor([prompt]), max_new_tokens=20, do_sample=False, eos_token_id=-1, pad_token_id=0
    )[0, 4:].tolist()
    result = generate_offline(str(folder), prompt, max_tokens=20, dtype="float32", device="cpu", ignore_eos=True)
    assert list(result.token_ids) == wanted
    assert result.finish_reason is FinishReason.LENGTH


def test_offline_generation_ends_at_the_models_end_token(folder: Path, reference: Any) -> None:
    for start in range(10, 40):
        free = generate_offline(str(folder), (start,), max_tokens=40, dtype="float32", device="cpu", ignore_eos=True)
        if SHAPE.eos_token_id in free.token_ids:
            break
    else:
        pytest.fail("no prompt leads to the end token: choose another seed for the model")
    at = free.token_ids.index(SHAPE.eos_token_id)
    ended = generate_offline(str(folder), (start,), max_tokens=40, dtype="float32", device="cpu")
    assert ended.token_ids == free.token_ids[:at]
    assert ended.finish_reason is FinishReason.STOP


def test_offline_draws_depend_on_the_seed_alone(folder: Path) -> None:
    def draw(seed: int) -> tuple[int, ...]:
        return generate_offline(
            str(folder), (1, 2, 3), max_tokens=12, dtype="float32", device="cpu", temperature=1.0, seed=seed
        ).token_ids

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_offline_refuses_bad_input(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="there is no such file or folder"):
        generate_offline(str(tmp_path / "nothing"), (1,))
    with pytest.raises(FieldError, match="prompt_ids: must be below the vocabulary size 96, not 96"):
        generate_offline(str(folder), (96,))
    with pytest.raises(FieldError, match="prompt_ids: must be 1 to 255 tokens"):
        generate_offline(str(folder), (1,) * 256)
    with pytest.raises(FieldError, match="max_tokens: must be 1 or more"):
        generate_offline(str(folder), (1,), max_tokens=0)
    with pytest.raises(FieldError, match="dtype: must be auto"):
        generate_offline(str(folder), (1,), dtype="int3")
    with pytest.raises(FieldError, match="device: must have an index among 0, not cpu:7"):
        generate_offline(str(folder), (1,), device="cpu:7")
    with pytest.raises(ValueError, match="executor 'imaginary'"):
        generate_offline(str(folder), (1,), executor="imaginary")


def test_loading_tells_how_far_it_is(folder: Path) -> None:
    told: list[tuple[float, str]] = []
    options = EngineOptions(device="cpu", executor="eager")
    engine = Engine.load(str(folder), options, lambda share, phase: told.append((share, phase)))
    shares = [share for share, _ in told]
    assert shares == sorted(shares)
    assert (shares[0], told[-1]) == (0.0, (1.0, "ready"))
    assert {phase.split(" on ")[0] for _, phase in told} == {"reading the model", "preparing the weights", "ready"}
    assert set(engine.implementations())


@pytest.mark.parametrize("blocks", [40, 18], ids=["room", "preemptions"])
def test_logprobs_of_prompts_are_those_of_transformers(loaded: EngineParts, reference: Any, blocks: int) -> None:
    common = list(range(3, 15))
    prompts = [[*common, 20 + number, *range(5, 5 + number)] for number in range(5)] + [[7]]
    sampling = SamplingParams(temperature=0.8, seed=5, repetition_penalty=1.3)
    plain = [SequenceRequest(str(i), tuple(ids), sampling, max_tokens=6) for i, ids in enumerate(prompts)]
    scored = [replace(each, prompt_logprobs=2, logprobs=0) for each in plain]
    outcomes = compute(loaded, scored, kv_cache_tokens=4 * blocks, context_length=4 * 18)
    alone = compute(loaded, plain)
    for number, ids in enumerate(prompts):
        found = outcomes[str(number)]
        assert found.cached_tokens == 0
        assert found.token_ids == alone[str(number)].token_ids
        assert [each.token_id for each in found.prompt_logprobs] == ids[1:]
        for at, each in enumerate(found.prompt_logprobs, 1):
            logits = next_logits(reference, ids[:at])
            logprobs = logits - np.logaddexp.reduce(logits)
            best = np.argsort(-logprobs, kind="stable")[:2]
            assert each.logprob == pytest.approx(logprobs[ids[at]], abs=1e-4)
            assert each.top_logprobs == pytest.approx(logprobs[best], abs=1e-4)


def test_scores_of_a_prompt_that_has_one_token_behind_it(loaded: EngineParts) -> None:
    request = SequenceRequest("a", (5, 6, 7), max_tokens=1, prompt_logprobs=0)
    assert [each.token_id for each in compute(loaded, [request])["a"].prompt_logprobs] == [6, 7]
