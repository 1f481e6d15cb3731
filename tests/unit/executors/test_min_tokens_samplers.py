"""min_tokens and biases where tokens are drawn: by the sampler on the host and by the one on the device."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.support.batching import Outcome, Outcomes
from tests.support.eager_models import tiny_model, workload

from polyfleet.engine.batching.batch import BatchLimits
from polyfleet.engine.batching.batcher import Batcher
from polyfleet.engine.executor import Capacity
from polyfleet.executors.eager import EagerExecutor
from polyfleet.loading.model import LoadedModel
from polyfleet.sampling.device import DeviceSampler
from polyfleet.sampling.host import HostSampler
from polyfleet.wire.answers import FinishReason, SampledToken
from polyfleet.wire.requests import SequenceRequest
from polyfleet.wire.sampling import GREEDY, SamplingParams

PROMPT = (5, 9, 14, 3, 27)
LEAST = 15
SAMPLERS = {1: HostSampler, 2: DeviceSampler}  # by how many steps are under way at once
HOW = {
    "greedy": GREEDY,
    "greedy, penalised": SamplingParams(temperature=0.0, repetition_penalty=1.3),
    "one candidate": SamplingParams(temperature=0.4, top_k=1, seed=3),
    "drawn": SamplingParams(temperature=1.0, top_p=0.9, min_p=0.01, seed=4),
    "drawn, penalised": SamplingParams(temperature=0.8, seed=5, repetition_penalty=1.3, frequency_penalty=0.2),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return tiny_model(tmp_path_factory.mktemp("least") / "model")


def run(model: LoadedModel, depth: int, requests: Sequence[SequenceRequest]) -> tuple[Outcomes, list[SampledToken]]:
    """What they come to, and all their tokens."""
    executor = EagerExecutor(workload(model), depth=depth)
    capacity = Capacity(40, 4, 6, 32, 24)
    executor.allocate(capacity)
    assert type(executor._sampler) is SAMPLERS[depth]
    limits = BatchLimits(6, 24, 128, vocabulary_size=model.config.vocabulary_size)
    batcher = Batcher(executor, capacity, limits)
    outcomes, tokens = Outcomes(), list[SampledToken]()
    for request in requests:
        batcher.add(request)
    while batcher.has_work:
        for update in batcher.step().updates:
            outcomes.setdefault(update.sequence_id, Outcome()).add(update)
            tokens += update.tokens
    return outcomes, tokens


@pytest.mark.parametrize("depth", SAMPLERS)
@pytest.mark.parametrize("how", HOW)
def test_what_would_end_a_sequence_is_not_drawn(model: LoadedModel, depth: int, how: str) -> None:
    plain = SequenceRequest("free", PROMPT, HOW[how], max_tokens=24)
    free = run(model, depth, [plain])[0]["free"].token_ids
    stops = (free[3], free[5])
    stopped = replace(plain, sequence_id="stopped", stop_token_ids=stops)
    choices = [replace(stopped, sequence_id=f"n{n}", choice=n, min_tokens=LEAST) for n in range(3)]
    outcomes, _ = run(model, depth, [stopped, *choices])
    cut = min(free.index(stop) for stop in stops)
    assert (outcomes["stopped"].token_ids, outcomes["stopped"].finish_reason) == (free[:cut], FinishReason.STOP)
    for each in choices:
        assert len(outcomes[each.sequence_id].token_ids) >= LEAST
    if "drawn" not in how:
        assert outcomes["n0"].token_ids[:cut] == free[:cut]  # what is barred has no other effect


@pytest.mark.parametrize("depth", SAMPLERS)
def test_logprobs_stay_the_models_own(model: LoadedModel, depth: int) -> None:
    plain = SequenceRequest("free", PROMPT, max_tokens=1, logprobs=2)
    stop = run(model, depth, [plain])[0]["free"].token_ids[0]
    (token,) = run(model, depth, [replace(plain, stop_token_ids=(stop,), min_tokens=1)])[1]
    assert token.top_ids == (stop, token.token_id)
    assert token.logprob == token.top_logprobs[1] < token.top_logprobs[0]


@pytest.mark.parametrize("depth", SAMPLERS)
@pytest.mark.parametrize("how", ["greedy", "drawn, penalised"])
def test_biases_are_in_every_draw_of_their_sequence_alone(model: LoadedModel, depth: int, how: str) -> None:
    free = SequenceRequest("free", PROMPT, HOW[how], max_tokens=6)
    pulled = replace(free, sequence_id="pulled", logit_bias={11: 100.0})
    alone = run(model, depth, [free])[0]["free"].token_ids
    pushed = replace(free, sequence_id="pushed", logit_bias=dict.fromkeys(alone, -100.0))
    outcomes, _ = run(model, depth, [free, pulled, pushed])
    assert outcomes["pulled"].token_ids == [11] * 6
    assert not set(outcomes["pushed"].token_ids) & set(alone)
    assert outcomes["free"].token_ids == alone
