"""Evicted prefixes come back from host memory and from disk, as they were, and whatever fails is computed."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.block_machine import ManyStreams
from tests.support.eager_models import workload
from tests.support.tiny_models import TinyShape, poisoned_model
from tests.unit.engine.test_exchange import Faulty, drained, engine, run, tokens_of
from tests.unit.kvcache.test_disk import finished

from polyfleet.engine.choosing.sizing import capacity_of
from polyfleet.engine.engine import Engine
from polyfleet.engine.step.plan import StepPlan
from polyfleet.engine.travel import shelf
from polyfleet.engine.travel.pace import Pace
from polyfleet.executors.blocks.copies import BlockCopies
from polyfleet.executors.blocks.host_rows import HostRows
from polyfleet.executors.eager import EagerExecutor
from polyfleet.executors.torch_pending import TorchPending
from polyfleet.kvcache.block_files import BlockFiles
from polyfleet.kvcache.travelling import DISK_PROBLEMS
from polyfleet.loading.model import LoadedModel
from polyfleet.wire.limits import FieldError
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import SequenceRequest

PROMPTS = [tuple(np.random.default_rng(seed).integers(3, 90, size=70).tolist()) for seed in range(4)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return poisoned_model(tmp_path_factory.mktemp("shelf"), TinyShape(), 95)


def made(model: LoadedModel, host: int = 1024, **given: Any) -> Engine:
    """With a pool for two of the prompts."""
    return engine(model, tokens=160, host_cache_tokens=host, **given)


def ask(target: Engine, prompt: Sequence[int], salt: bytes = b"") -> tuple[list[int], int]:
    """The tokens that follow, and how many of the prompt's were cached."""
    updates = run(target, prompt, salt=salt)
    target.check()
    return tokens_of(updates), updates[0].cached_tokens or 0


@pytest.mark.parametrize("block_size", [4, 16])
def test_what_was_evicted_comes_back(block_size: int, model: LoadedModel) -> None:
    target = made(model, block_size=block_size)
    first = [ask(target, prompt) for prompt in PROMPTS]
    assert [cached for _, cached in first] == [0] * 4
    again = [ask(target, prompt) for prompt in PROMPTS]
    assert [tokens for tokens, _ in again] == [tokens for tokens, _ in first]
    assert min(cached for _, cached in again) >= 64
    status = target.status()
    assert status.restored_tokens > 64
    assert 0 < status.host_blocks <= 1024 // block_size


def test_without_it_they_are_computed_again(model: LoadedModel) -> None:
    target = made(model, host=0)
    for prompt in PROMPTS:
        ask(target, prompt)
    assert ask(target, PROMPTS[0])[1] == 0
    assert target.status().host_blocks == target.status().restored_tokens == 0


def test_a_full_tier_keeps_the_last(model: LoadedModel) -> None:
    target = made(model, host=64)
    for prompt in PROMPTS:
        ask(target, prompt)
    assert target.status().host_blocks == 4
    assert ask(target, PROMPTS[0])[1] == 0
    assert target.status().host_blocks == 4


def test_more_than_the_host_has_is_refused(model: LoadedModel) -> None:
    with pytest.raises(FieldError, match=r"host_cache_tokens: needs \d+ MiB of host memory"):
        made(model, host=2**31 - 1)


def test_tenants_find_their_own_alone(model: LoadedModel) -> None:
    target = made(model)
    expected = ask(target, PROMPTS[0], salt=b"one")
    for prompt in PROMPTS[1:]:
        ask(target, prompt)
    assert ask(target, PROMPTS[0], salt=b"another")[1] == 0
    for prompt in PROMPTS[1:]:
        ask(target, prompt)
    tokens, cached = ask(target, PROMPTS[0], salt=b"one")
    assert tokens == expected[0]
    assert cached >= 64


def test_sequences_side_by_side_get_what_is_theirs(model: LoadedModel) -> None:
    expected = [ask(made(model, host=0), prompt)[0] for prompt in PROMPTS]
    target = made(model)
    for _ in range(3):
        for number, prompt in enumerate(PROMPTS):
            target.add(SequenceRequest(str(number), prompt, max_tokens=4, ignore_eos=True))
        found: dict[str, list[int]] = {}
        for update in drained(target):
            found.setdefault(update.sequence_id, []).extend(token.token_id for token in update.tokens)
        assert [found[str(number)] for number in range(len(PROMPTS))] == expected
    assert target.status().restored_tokens


def test_an_executor_that_can_not_read_or_write_computes(model: LoadedModel) -> None:
    target = made(model)
    expected = [ask(target, prompt)[0] for prompt in PROMPTS]
    executor = target._executor
    assert isinstance(executor, Faulty)
    kept = target.status().host_blocks
    executor.fails = True
    assert [ask(target, prompt)[0] for prompt in PROMPTS] == expected
    executor.fails = False
    assert target.status().host_blocks == kept
    assert target.status().restored_tokens == 0
    assert [ask(target, prompt)[0] for prompt in PROMPTS] == expected


def beside_steps(model: LoadedModel, **given: Any) -> tuple[Engine, ManyStreams]:
    """On the eager executor, as where it copies beside its steps, which here wait for all before them."""
    streams = ManyStreams(7)
    options = EngineOptions(
        device="cpu",
        dtype="float32",
        context_length=128,
        kv_cache_tokens=160,
        max_sequences=4,
        step_tokens=64,
        block_size=16,
        host_cache_tokens=1024,
        **given,
    )

    class Beside(EagerExecutor):
        def launch(self, plan: StepPlan) -> TorchPending:
            waits = streams.steps.waits
            self._copies.before_step(plan, self._capacity.max_blocks)
            while streams.steps.waits > waits and streams.steps.todo:
                assert streams.go_on()
            return super().launch(plan)

        def host_rows(self, count: int) -> HostRows:
            self._copies = BlockCopies(self._storage, torch.float32, torch.device("cpu"), streams)
            return HostRows(self._copies, count, pinned=False)

    executor = Beside(workload(model, block_size=16))
    executor.allocate(capacity_of(options))
    return Engine(executor, model.config, options, fingerprint="a model"), streams


@pytest.mark.usefixtures("patient")
def test_what_an_executor_copies_beside_its_steps_comes_back(model: LoadedModel, tmp_path: Path) -> None:
    expected = [ask(made(model, host=0), prompt)[0] for prompt in PROMPTS]
    target, streams = beside_steps(model, disk_cache_dir=str(tmp_path))
    for _ in range(2):
        found = [ask(target, prompt) for prompt in PROMPTS]
        assert [tokens for tokens, _ in found] == expected
    assert min(cached for _, cached in found) >= 64
    assert target.status().restored_tokens > 64
    streams.finish()
    target.close()
    later = on_disk(model, tmp_path)
    assert known_on_disk(later, PROMPTS[0]) == 4
    assert ask(later, PROMPTS[0])[0] == expected[0]
    assert later.status().disk_tokens >= 64
    later.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on disk is read however long that takes beside computing: tests run on busy machines."""
    monkeypatch.setattr(shelf, "READ_SECONDS", (60.0, 60.0))
    monkeypatch.setattr(Pace, "slower_than", lambda pace, rate: False)


def on_disk(model: LoadedModel, folder: Path, host: int = 96, **given: Any) -> Engine:
    """With a directory behind host memory that has room for one of the prompts."""
    return made(model, host, disk_cache_dir=str(folder), **given)


@pytest.mark.usefixtures("patient")
def test_what_is_on_disk_survives_the_engine(model: LoadedModel, tmp_path: Path) -> None:
    target = on_disk(model, tmp_path)
    first = [ask(target, prompt) for prompt in PROMPTS * 2]
    target.close()
    later = on_disk(model, tmp_path)
    written = [prompt for prompt in PROMPTS if known_on_disk(later, prompt) >= 4]
    assert len(written) >= 3
    for prompt in written:
        tokens, cached = ask(later, prompt)
        assert tokens == first[PROMPTS.index(prompt)][0]
        assert cached >= 64
    status = later.status()
    assert status.disk_tokens >= 128
    assert status.disk_blocks > 0
    assert sum(status.disk_problems) == 0
    later.close()


def known_on_disk(target: Engine, prompt: Sequence[int], salt: bytes = b"") -> int:
    """Blocks of a prompt's beginning that are there, once all that is there has been found."""
    assert target._shelf is not None
    disk = target._shelf._disk
    assert disk is not None
    finished(disk.read([]))
    return disk.known(target._exchange.chain(prompt, salt)[:4])


@pytest.mark.usefixtures("patient")
def test_tenants_find_their_own_alone_on_disk_too(model: LoadedModel, tmp_path: Path) -> None:
    target = on_disk(model, tmp_path)
    for prompt in PROMPTS:
        ask(target, prompt, salt=b"one")
    target.close()
    later = on_disk(model, tmp_path)
    assert known_on_disk(later, PROMPTS[0], b"one") == 4
    assert ask(later, PROMPTS[0], salt=b"another")[1] == 0
    assert later.status().disk_tokens == 0
    assert ask(later, PROMPTS[0], salt=b"one")[1] >= 64
    later.close()


def test_another_revision_computes_and_removes_what_it_finds(model: LoadedModel, tmp_path: Path) -> None:
    target = on_disk(model, tmp_path)
    expected = [ask(target, prompt)[0] for prompt in PROMPTS]
    target.close()
    assert list(tmp_path.rglob("*.kv"))
    later = on_disk(model, tmp_path, name="retrained")
    assert known_on_disk(later, PROMPTS[0]) == 0
    assert not list(tmp_path.rglob("*.kv"))
    assert ask(later, PROMPTS[0]) == (expected[0], 0)
    later.close()


@pytest.mark.usefixtures("patient")
def test_damaged_files_are_computed(model: LoadedModel, tmp_path: Path) -> None:
    target = on_disk(model, tmp_path)
    expected = [ask(target, prompt)[0] for prompt in PROMPTS]
    target.close()
    for path in tmp_path.rglob("*.kv"):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    later = on_disk(model, tmp_path)
    assert known_on_disk(later, PROMPTS[0]) == 4
    assert ask(later, PROMPTS[0]) == (expected[0], 0)
    assert dict(zip(DISK_PROBLEMS, later.status().disk_problems, strict=True))["refused"] == 1
    later.close()


def test_a_directory_that_cannot_be_used_is_no_reason_not_to_serve(
    model: LoadedModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "file"
    file.write_text("no directory")
    target = on_disk(model, file)
    assert "disk_cache_dir has no effect: no blocks can be kept in" in caplog.text
    expected = [ask(target, prompt)[0] for prompt in PROMPTS]
    assert [ask(target, prompt)[0] for prompt in PROMPTS] == expected
    assert target.status().disk_blocks == 0


def test_a_disk_that_hangs_holds_a_sequence_no_longer_than_computing(
    model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = on_disk(model, tmp_path)
    expected = [ask(target, prompt)[0] for prompt in PROMPTS]
    target.close()
    later = on_disk(model, tmp_path)
    assert known_on_disk(later, PROMPTS[0]) == 4
    held = threading.Event()
    monkeypatch.setattr(BlockFiles, "read", lambda *_: held.wait())
    monkeypatch.setattr(shelf, "READ_SECONDS", (0.0, 0.0))
    assert ask(later, PROMPTS[0]) == (expected[0], 0)
    assert later.status().disk_problems[DISK_PROBLEMS.index("slow")] == 1
    later.add(SequenceRequest("left", PROMPTS[1], max_tokens=4))
    later.cancel("left")
    assert not [*drained(later)]
    held.set()
    monkeypatch.undo()
    later.close()


def test_a_disk_needs_host_memory_before_it(model: LoadedModel, tmp_path: Path) -> None:
    with pytest.raises(FieldError, match="disk_cache_dir: needs host_cache_tokens"):
        on_disk(model, tmp_path, host=0)
