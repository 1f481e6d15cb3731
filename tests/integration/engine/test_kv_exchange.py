"""Prefixes between executors: computed on one, continued on another, as if computed there."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.exchanging import (
    KINDS,
    PROMPT,
    TENANT,
    VOCABULARY,
    add,
    answer,
    assert_alike,
    drained,
    engine,
    over,
    workload_of,
)
from tests.support.giver import Giver
from tests.support.tiny_architectures import TINY, make
from tests.support.tiny_models import TinyShape, write_folder

from polyfleet.engine.engine import Engine
from polyfleet.executors.eager import EagerExecutor
from polyfleet.kvcache.portable import KvLayout
from polyfleet.loading.fingerprint import fingerprint
from polyfleet.loading.load import load_model
from polyfleet.loading.model import LoadedModel
from polyfleet.transfer.room import TransferRoom
from polyfleet.transfer.settings import TransferSettings
from polyfleet.wire.hashing import prefix_root
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import SequenceRequest
from polyfleet.wire.tickets import source_of

PAIRS = [
    *(("cpu", "eager"), ("eager", "cpu"), ("cpu", "eager_bfloat16"), ("eager_bfloat16", "cpu")),
    *(("eager", "eager_bfloat16"), ("eager_bfloat16", "eager"), ("vulkan", "cpu"), ("cpu", "vulkan")),
    *(("cpu_int8", "eager_int8"), ("eager_int8", "cpu_int8"), ("cpu_int8", "cpu"), ("cpu", "cpu_int8")),
]
FETCHED = [
    ("cpu", "eager"),
    ("eager", "cpu"),
    ("eager_bfloat16", "cpu"),
    ("cpu_int8", "eager_int8"),
    ("eager", "cpu_int8"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(str(write_folder(tmp_path_factory.mktemp("exchange"), TinyShape(vocabulary=VOCABULARY))))


@pytest.fixture(autouse=True)
def software_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYFLEET_VULKAN_SOFTWARE", "1")


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
@pytest.mark.parametrize(("source", "target"), FETCHED)
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
    [
        *((*pair, True) for pair in PAIRS),
        ("cpu", "eager", False),
        ("cpu_int8", "eager_int8", False),
        ("eager_fp8", "eager_fp8", True),
    ],
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


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
@pytest.mark.parametrize("executor", ["eager", "persistent"])
def test_a_prefix_in_two_pools_moves(executor: str, kv_dtype: str, tmp_path: Path) -> None:
    """Of layers with a window, and of one that sees all."""
    make(TINY["gemma3"], tmp_path)
    sizes = {"context_length": 128, "kv_cache_tokens": 256, "max_sequences": 2, "step_tokens": 24, "block_size": 16}
    kinds = {"executor": executor, "dtype": "float32", "kv_dtype": kv_dtype}
    options = EngineOptions(device="cpu", threads=1, **kinds, **sizes)  # type: ignore[arg-type]
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
