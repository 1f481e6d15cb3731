"""Prefixes between engines: what is taken, what is refused, and that all is balanced whatever happens."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.numpy_executor import NumpyExecutor
from tests.support.tiny_models import TinyShape, poisoned_model

from polyfleet.engine.choosing.sizing import capacity_of
from polyfleet.engine.engine import Engine
from polyfleet.kvcache.portable import Joined
from polyfleet.loading.model import LoadedModel
from polyfleet.models.registry import record
from polyfleet.wire.answers import SequenceUpdate
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import SequenceRequest

PROMPT = tuple(np.random.default_rng(5).integers(3, 90, size=70).tolist())
POISON = 95  # a token whose embedding is not finite


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return poisoned_model(tmp_path_factory.mktemp("exchange"), TinyShape(), POISON)


class Faulty(NumpyExecutor):
    """Fails to write after the first cache where it is told to."""

    fails = False

    def import_blocks(self, blocks: Sequence[int], caches: Sequence[NDArray[Any]]) -> None:
        if self.fails:
            self._caches[0][:, list(blocks)] = np.nan
            raise OSError("the device is gone")
        super().import_blocks(blocks, caches)

    def export_blocks(self, blocks: Sequence[int]) -> tuple[NDArray[Any], ...]:
        if self.fails and blocks:
            raise OSError("the device is gone")
        return super().export_blocks(blocks)


def engine(
    model: LoadedModel, tokens: int = 256, block_size: int = 16, name: str = "a model", **options: Any
) -> Engine:
    resolved = EngineOptions(
        device="cpu",
        dtype="float32",
        context_length=min(tokens, 128),
        kv_cache_tokens=tokens,
        max_sequences=4,
        step_tokens=64,
        block_size=block_size,
        **options,
    )
    executor = Faulty(record(model.config, model.weights), model.weights)
    executor.allocate(capacity_of(resolved))
    return Engine(executor, model.config, resolved, fingerprint=name)


def run(target: Engine, prompt: Sequence[int], max_tokens: int = 4, salt: bytes = b"") -> list[SequenceUpdate]:
    target.add(SequenceRequest("one", tuple(prompt), max_tokens=max_tokens, ignore_eos=True, cache_salt=salt))
    return list(drained(target))


def drained(target: Engine) -> Iterator[SequenceUpdate]:
    while target.has_work:
        yield from target.step()
        target.check()


def tokens_of(updates: Sequence[SequenceUpdate]) -> list[int]:
    assert not any(update.error for update in updates)
    return [token.token_id for update in updates for token in update.tokens]


@pytest.mark.parametrize(
    ("theirs", "ours", "taken"), [(16, 16, 64), (8, 16, 64), (16, 8, 64), (32, 16, 64), (16, 32, 64), (16, 64, 64)]
)
def test_a_continuation_goes_on_from_an_imported_prefix(model: LoadedModel, theirs: int, ours: int, taken: int) -> None:
    there, here = engine(model, block_size=theirs), engine(model, block_size=ours)
    expected = run(there, PROMPT)
    assert here.import_prefix(there.export_prefix(PROMPT)) == taken
    here.check()
    actual = run(here, PROMPT)
    assert actual[0].cached_tokens == taken
    assert tokens_of(actual) == tokens_of(expected)


def test_only_whole_blocks_of_both_engines_are_taken(model: LoadedModel) -> None:
    there, here = engine(model, block_size=8), engine(model, block_size=24)
    run(there, PROMPT[:61])  # 56 tokens are cached in blocks of 8, 48 travel
    assert here.import_prefix(there.export_prefix(PROMPT)) == 48
    coarse = engine(model, block_size=32)
    assert coarse.import_prefix(there.export_prefix(PROMPT)) == 32
    assert engine(model, block_size=64).import_prefix(there.export_prefix(PROMPT)) == 0


def test_nothing_is_taken_twice(model: LoadedModel) -> None:
    there, here = engine(model), engine(model)
    run(there, PROMPT)
    run(here, PROMPT[:40])
    data = there.export_prefix(PROMPT)
    free = here.status().free_blocks
    for _ in range(2):
        assert here.import_prefix(data) == 64
        here.check()
        assert here.status().free_blocks == free
    assert len(here._batcher.prefixes) == 4


def test_a_prompt_that_is_not_cached_exports_no_token(model: LoadedModel) -> None:
    there, here = engine(model), engine(model)
    run(there, PROMPT)
    for tokens, salt in (((9, *PROMPT), b""), (PROMPT, b"somebody"), (PROMPT[:15], b""), ((), b"")):
        assert here.import_prefix(there.export_prefix(tokens, salt), salt) == 0
    here.check()


def test_a_prefix_stays_with_its_tenant_and_its_model(model: LoadedModel) -> None:
    there, here = engine(model), engine(model)
    run(there, PROMPT, salt=b"a tenant")
    data = there.export_prefix(PROMPT, b"a tenant")
    for salt in (b"", b"another"):
        with pytest.raises(ValueError, match="for this tenant"):
            here.import_prefix(data, salt)
    with pytest.raises(ValueError, match="another model"):
        engine(model, name="retrained").import_prefix(data, b"a tenant")
    assert here.import_prefix(data, b"a tenant") == 64
    assert run(here, PROMPT)[0].cached_tokens == 0
    assert run(here, PROMPT, salt=b"a tenant")[0].cached_tokens == 64


def test_takes_what_fits_beside_running_sequences(model: LoadedModel) -> None:
    there, here = engine(model), engine(model, tokens=96)
    run(there, PROMPT)
    data = there.export_prefix(PROMPT)
    here.add(SequenceRequest("busy", PROMPT[::-1][:60], max_tokens=20, ignore_eos=True))
    updates = here.step()
    assert here.import_prefix(data) == 32  # of 6 blocks the sequence holds 4
    here.check()
    rest = [*updates, *drained(here)]
    assert tokens_of(rest) == tokens_of(run(engine(model), PROMPT[::-1][:60], 20))


def test_makes_room_among_prefixes_that_nobody_uses(model: LoadedModel) -> None:
    there, here = engine(model), engine(model, tokens=80)
    run(there, PROMPT)
    run(here, PROMPT[::-1])
    assert here.import_prefix(there.export_prefix(PROMPT)) == 64
    here.check()
    assert run(here, PROMPT)[0].cached_tokens == 64


def test_an_executor_that_fails_leaves_all_balanced(model: LoadedModel) -> None:
    there, here = engine(model), engine(model)
    expected = tokens_of(run(there, PROMPT))
    data = there.export_prefix(PROMPT)
    free = here.status().free_blocks
    for side in (there, here):
        assert isinstance(side._executor, Faulty)
        side._executor.fails = True
    with pytest.raises(OSError, match="gone"):
        here.import_prefix(data)
    with pytest.raises(OSError, match="gone"):
        there.export_prefix(PROMPT)
    for side in (there, here):
        side.check()
        assert side.status().free_blocks == free
        assert isinstance(side._executor, Faulty)
        side._executor.fails = False
    assert len(here._batcher.prefixes) == 0
    assert tokens_of(run(here, PROMPT)) == expected
    assert all(np.isfinite(each).all() for each in here._executor.export_blocks(range(16)))  # the half-written blocks


def test_blocks_that_were_to_be_cleared_keep_what_was_imported(model: LoadedModel) -> None:
    there, here = engine(model), engine(model, tokens=80)
    expected = tokens_of(run(there, PROMPT))
    assert run(here, (*PROMPT[:60], POISON))[-1].error
    assert here.import_prefix(there.export_prefix(PROMPT)) == 64
    actual = run(here, PROMPT)
    assert actual[0].cached_tokens == 64
    assert tokens_of(actual) == expected


def test_without_a_prefix_cache_nothing_is_kept(model: LoadedModel) -> None:
    there, here = engine(model), engine(model, prefix_cache=False)
    run(there, PROMPT)
    assert here.import_prefix(there.export_prefix(PROMPT)) == 0
    assert len(here._batcher.prefixes) == 0


def test_whole_blocks_leave_as_they_lie(model: LoadedModel) -> None:
    here = engine(model)
    run(here, PROMPT)
    exchange, executor, block = here._exchange, here._exchange.executor, here.facts.block_size

    def begin_export(blocks: Sequence[int]) -> Callable[[], tuple[NDArray[Any], ...]]:
        caches = executor.export_blocks(blocks)
        memory = memoryview(b"".join(each.tobytes() for each in caches))
        return lambda: Joined.of(memory, [each.shape for each in caches], caches[0].dtype)

    executor.begin_export = begin_export  # type: ignore[attr-defined]
    hashes = exchange.chain(PROMPT, b"")
    whole, part = exchange.read(hashes, 0, 2 * block), exchange.read(hashes, 0, 2 * block - 1)
    assert isinstance(whole, Joined)
    assert not isinstance(part, Joined)
    for each, other in zip(whole, part, strict=True):
        assert np.array_equal(each[:, : 2 * block - 1], other)
