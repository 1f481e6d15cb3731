"""Prefixes between executors: computed on one, continued on another, as if computed there."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from tests.support.giver import Giver
from tests.support.tiny_architectures import TINY, make
from tests.support.tiny_models import TinyShape, write_folder

from polyfleet.backends.cpu import CpuBackend
from polyfleet.backends.registry import BackendRegistry
from polyfleet.engine.engine import Engine
from polyfleet.engine.executor import Executor
from polyfleet.engine.executors import KNOWN, Workload, find
from polyfleet.engine.sizing import capacity_of
from polyfleet.executors.eager import EagerExecutor
from polyfleet.kvcache.portable import KvLayout
from polyfleet.loading.fingerprint import fingerprint
from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel
from polyfleet.loading.progress import silent
from polyfleet.models.registry import record
from polyfleet.transfer.room import TransferRoom
from polyfleet.transfer.settings import TransferSettings
from polyfleet.wire.answers import SampledToken, SequenceUpdate
from polyfleet.wire.hashing import prefix_root
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import SequenceRequest
from polyfleet.wire.tickets import PrefixSource, source_of

VOCABULARY = 20  # all of whose logprobs may be asked for
PROMPT = tuple(np.random.default_rng(5).integers(3, VOCABULARY, size=70).tolist())
TENANT = b"a tenant"


class Kind(NamedTuple):
    executor: str
    dtype: str
    block_size: int
    stores: str  # the dtype of its cache
    kv_dtype: str = "auto"


KINDS = {
    "cpu": Kind("persistent", "float32", 16, "float16"),
    "eager": Kind("eager", "float32", 16, "float32"),
    "eager_bfloat16": Kind("eager", "bfloat16", 32, "bfloat16"),
    "eager_fp8": Kind("eager", "float32", 16, "float32", "fp8"),
    "vulkan": Kind("vulkan", "float32", 16, "float32"),
}
# The most that a logprob may differ from one computed in place: what the coarser of both caches rounds.
TOLERANCE = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 0.15}
PAIRS = [
    *(("cpu", "eager"), ("eager", "cpu"), ("cpu", "eager_bfloat16"), ("eager_bfloat16", "cpu")),
    *(("eager", "eager_bfloat16"), ("eager_bfloat16", "eager"), ("vulkan", "cpu"), ("cpu", "vulkan")),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(str(write_folder(tmp_path_factory.mktemp("exchange"), TinyShape(vocabulary=VOCABULARY))))


@pytest.fixture(autouse=True)
def software_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYFLEET_VULKAN_SOFTWARE", "1")


def engine(model: LoadedModel, name: str) -> Engine:
    kind = KINDS[name]
    if kind.executor == "vulkan":
        pytest.importorskip("wgpu", reason="the vulkan extra is not installed")
        if BackendRegistry.find("vulkan") is None:
            pytest.skip("no Vulkan device: apt install mesa-vulkan-drivers libvulkan1")
    workload = workload_of(model, kind)
    return over(find(kind.executor, KNOWN[kind.executor]).build(workload, silent), workload, model)


def workload_of(model: LoadedModel, kind: Kind) -> Workload:
    options = EngineOptions(
        device="cpu",
        dtype=kind.dtype,
        kv_dtype=kind.kv_dtype,
        context_length=128,
        kv_cache_tokens=256,
        max_sequences=4,
        step_tokens=96,
        block_size=kind.block_size,
        threads=1,
    )
    backend = CpuBackend()
    capabilities = backend.capabilities(backend.devices()[0])
    return Workload(record(model.config, model.weights), model.weights, options, "cpu", kind.dtype, capabilities)


def over(executor: Executor, workload: Workload, model: LoadedModel) -> Engine:
    executor.allocate(capacity_of(workload.options))
    return Engine(executor, model.config, workload.options, fingerprint=fingerprint(model))


def add(target: Engine, name: str, prompt: tuple[int, ...] = PROMPT, prefix_source: PrefixSource | None = None) -> None:
    """Eight greedy tokens with all logprobs."""
    request = SequenceRequest(name, prompt, max_tokens=8, ignore_eos=True, logprobs=VOCABULARY, cache_salt=TENANT)
    target.add(replace(request, prefix_source=prefix_source))


def drained(target: Engine) -> list[SequenceUpdate]:
    updates = []
    while target.has_work:
        updates += target.step()
        target.check()
    assert not any(update.error for update in updates)
    return updates


def answer(target: Engine, prefix_source: PrefixSource | None = None) -> tuple[list[SampledToken], int]:
    """The tokens behind PROMPT, and how many tokens of it were cached."""
    add(target, "one", prefix_source=prefix_source)
    updates = drained(target)
    return [token for update in updates for token in update.tokens], updates[0].cached_tokens or 0


def assert_alike(actual: list[SampledToken], expected: list[SampledToken], source: str, target: str) -> None:
    """The same tokens, as likely as the caches of both kinds of engines can tell."""
    tolerance = max(TOLERANCE[KINDS[name].stores] for name in (source, target))
    for mine, reference in zip(actual, expected, strict=True):
        assert logprobs(mine) == pytest.approx(logprobs(reference), abs=tolerance)
        assert mine.token_id == reference.token_id


def logprobs(token: SampledToken) -> list[float]:
    """In the order of ids."""
    return [logprob for _, logprob in sorted(zip(token.top_ids, token.top_logprobs, strict=True))]


@pytest.mark.parametrize("name", KINDS)
def test_each_executor_stores_what_the_layout_says(model: LoadedModel, name: str) -> None:
    target = engine(model, name)
    layout = KvLayout.of("", target._executor.export_blocks(()))
    assert layout.dtype == KINDS[name].stores
    assert [(each.heads, each.width) for each in layout.caches] == [(2, 16), (2, 16)]
    target.close()


@pytest.mark.parametrize("name", KINDS)
def test_an_executor_takes_its_own_prefix_bit_by_bit(model: LoadedModel, name: str) -> None:
    there, here = engine(model, name), engine(model, name)
    answer(there)
    expected, cached = answer(there)  # from its own cache
    assert cached == 64
    data = there.export_prefix(PROMPT, TENANT)
    assert here.import_prefix(data, TENANT) == 64
    actual, cached = answer(here)
    assert cached == 64
    assert actual == expected
    assert here.export_prefix(PROMPT, TENANT) == data
    there.close()
    here.close()


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=["-".join(pair) for pair in PAIRS])
def test_a_continuation_elsewhere_is_the_one_computed_in_place(model: LoadedModel, source: str, target: str) -> None:
    there, here, alone = engine(model, source), engine(model, target), engine(model, target)
    answer(there)
    assert here.import_prefix(there.export_prefix(PROMPT, TENANT), TENANT) == 64
    expected, cached = answer(alone)
    assert cached == 0
    actual, cached = answer(here)
    assert cached == 64
    assert_alike(actual, expected, source, target)
    for each in (there, here, alone):
        each.close()


@pytest.mark.parametrize("local", [False, True], ids=["tcp", "memory"])
@pytest.mark.parametrize(("source", "target"), [("cpu", "eager"), ("eager", "cpu"), ("eager_bfloat16", "cpu")])
def test_what_is_fetched_from_another_worker_is_what_was_computed_in_place(
    model: LoadedModel, source: str, target: str, local: bool
) -> None:
    there, here, alone = engine(model, source), engine(model, target), engine(model, target)
    answer(there)
    giver, room = Giver(there), TransferRoom(TransferSettings("127.0.0.1:0"))
    here.attend(room)
    offer = giver.offer if local else replace(giver.offer, local="")
    ticket = source_of(offer, prefix_root(fingerprint(model), TENANT), 4096)
    expected, _ = answer(alone)
    actual, cached = answer(here, ticket)
    assert (cached, here.status().fetched_tokens) == (64, 64)
    assert_alike(actual, expected, source, target)
    giver.close()
    room.close()
    for each in (there, here, alone):
        each.close()


@pytest.mark.parametrize(
    ("source", "target", "local"),
    [*((*pair, True) for pair in PAIRS), ("cpu", "eager", False), ("eager_fp8", "eager_fp8", True)],
)
def test_a_prompt_that_another_worker_computes_goes_on_as_if_computed_in_place(
    model: LoadedModel, source: str, target: str, local: bool
) -> None:
    there, here, alone = engine(model, source), engine(model, target), engine(model, target)
    there._batcher._budget.most = 40  # two steps
    giver, room = Giver(there), TransferRoom(TransferSettings("127.0.0.1:0"))
    here.attend(room)
    offer = giver.offer if local else replace(giver.offer, local="")
    expected, _ = answer(alone)
    actual, cached = answer(here, source_of(offer, prefix_root(fingerprint(model), TENANT), len(PROMPT), seconds=60))
    assert (cached, here.status().prefills_apart, there.status().prompts_for_others) == (64, 1, 1)
    assert_alike(actual, expected, source, target)
    giver.close()
    room.close()
    for each in (there, here, alone):
        each.close()


def test_prefixes_come_and_go_while_steps_are_under_way(model: LoadedModel) -> None:
    workload = workload_of(model, KINDS["eager"])
    there, here, alone = (over(EagerExecutor(workload, depth=2), workload, model) for _ in range(3))
    expected, _ = answer(alone)
    other = tuple(reversed(PROMPT))
    add(there, "another", other)
    drained(there)
    add(here, "one")
    updates = here.step() + here.step()
    assert here.import_prefix(there.export_prefix(other, TENANT), TENANT) == 64
    here.check()
    assert there.import_prefix(here.export_prefix(PROMPT, TENANT), TENANT) == 64
    add(here, "another", other)
    updates += drained(here)
    undisturbed = [token.token_id for token in expected]
    mine = [token.token_id for update in updates if update.sequence_id == "one" for token in update.tokens]
    assert mine == undisturbed
    assert next(update.cached_tokens for update in updates if update.sequence_id == "another") == 64
    actual, cached = answer(there)
    assert cached == 64
    assert [token.token_id for token in actual] == undisturbed


@pytest.mark.parametrize("executor", ["eager", "persistent"])
def test_a_prefix_in_two_pools_moves(executor: str, tmp_path: Path) -> None:
    """Of layers with a window, and of one that sees all."""
    make(TINY["gemma3"], tmp_path)
    sizes = {"context_length": 128, "kv_cache_tokens": 256, "max_sequences": 2, "step_tokens": 24, "block_size": 16}
    options = EngineOptions(device="cpu", executor=executor, dtype="float32", threads=1, **sizes)  # type: ignore[arg-type]
    there, here = (Engine.load(str(tmp_path), options) for _ in range(2))
    for each in (there, here):
        assert len(each._batcher.holdings.lanes) == 2
    prompt = tuple(number % 150 + 3 for number in range(50))
    given = SequenceRequest("one", prompt, max_tokens=30, ignore_eos=True)
    (there_tokens, nothing), imported = tokens_of(there, given), here.import_prefix(there.export_prefix(prompt))
    assert (nothing, imported) == (0, 48)
    assert tokens_of(here, given) == (there_tokens, 48)
    assert tokens_of(there, given) == (there_tokens, 48)
    for each in (there, here):
        each.close()


@pytest.mark.parametrize(
    ("executor", "length", "computes"),
    [("eager", 100, False), ("eager", 100, True), ("eager", 230, True), ("persistent", 230, True)],
)
def test_a_prefix_in_two_pools_moves_to_another_worker(
    executor: str, length: int, computes: bool, tmp_path: Path
) -> None:
    """While it is computed, too; of one that is longer than the windows' pool as much as that holds."""
    make(TINY["gemma3"], tmp_path)
    sizes = {"context_length": 256, "kv_cache_tokens": 512, "max_sequences": 2, "step_tokens": 24, "block_size": 16}
    options = EngineOptions(device="cpu", executor=executor, dtype="float32", threads=1, **sizes)  # type: ignore[arg-type]
    there, here, alone = (Engine.load(str(tmp_path), options) for _ in range(3))
    prompt = tuple(number % 150 + 3 for number in range(length))
    given = SequenceRequest("one", prompt, max_tokens=20, ignore_eos=True)
    expected, _ = tokens_of(alone, given)
    if not computes:
        tokens_of(there, given)
    giver, room = Giver(there), TransferRoom(TransferSettings("127.0.0.1:0"))
    here.attend(room)
    root = prefix_root(here._travel._exchange.layout.model, b"")  # type: ignore[union-attr]
    ticket = source_of(giver.offer, root, length, seconds=60.0 if computes else 0.0)
    actual, cached = tokens_of(here, replace(given, prefix_source=ticket))
    assert actual == expected
    assert cached == 96 if length == 100 else 0 < cached < length
    assert here.status().fetched_tokens == cached
    giver.close()
    room.close()
    for each in (there, here, alone):
        each.close()


def tokens_of(target: Engine, request: SequenceRequest) -> tuple[list[int], int]:
    """Its tokens, and how many of its prompt were cached."""
    target.add(request)
    updates = drained(target)
    return [token.token_id for update in updates for token in update.tokens], updates[0].cached_tokens or 0
