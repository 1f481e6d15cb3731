"""A group of real processes: what it computes, gives and takes, and what becomes of it when a rank does not answer.

One group of two ranks serves all tests of this file but those of starts that fail, in order: the last one ends it, and
a process is in one group at a time.
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest
from tests.support.batching import run_engine
from tests.support.peft_folders import low_rank_tensors, merged, write_adapter
from tests.support.tiny_models import TinyShape, random_tensors, write_folder

from polyfleet.backends.cpu import usable_cores
from polyfleet.engine import Engine
from polyfleet.engine.executor import DeviceTimeout
from polyfleet.executors.ranks import members
from polyfleet.wire.limits import FieldError
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import SequenceRequest
from polyfleet.wire.sampling import SamplingParams

VOCABULARY = 20  # all of whose logprobs may be asked for
TOLERANCE = 1e-4  # of a logprob in float32
SHAPE = TinyShape(vocabulary=VOCABULARY)
COMMON = tuple(3 + number % 13 for number in range(21))
needs_cores = pytest.mark.skipif(usable_cores() < 2, reason="ranks have a core each")
pytestmark = needs_cores


def options(**changes: object) -> EngineOptions:
    """Small steps, and a pool that the sequences of a test don't fit all at once."""
    chosen = {
        **{"device": "cpu", "dtype": "float32", "executor": "eager", "block_size": 4, "max_sequences": 4},
        **{"kv_cache_tokens": 96, "step_tokens": 12, "context_length": 64},
        **changes,
    }
    return EngineOptions(**chosen)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("group"), SHAPE, num_shards=2)


@pytest.fixture(scope="module")
def alone(folder: Path) -> Engine:
    return Engine.load(str(folder), options(threads=1))


@pytest.fixture(scope="module")
def group(folder: Path) -> Iterator[Engine]:
    """Whose tokens the model itself drafts, whole on the first rank."""
    with pytest.MonkeyPatch.context() as patient:
        patient.setattr(members, "SILENCE_LOOKS", 10**6)  # a busy machine is no rank that hangs
        drafting = {"speculation": "draft", "draft_model": str(folder), "draft_tokens": 2, "step_tokens": 13}
        sizes = {"kv_cache_tokens": 64, "max_adapters": 1, "max_rank": 4}
        engine = Engine.load(str(folder), options(tensor_parallel=2, **sizes, **drafting))
        yield engine
    pids = ranks(engine)
    engine.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)


def ranks(engine: Engine) -> list[int]:
    pids: list[int] = engine._executor.pids  # type: ignore[attr-defined]
    return pids


def step_for_ever(engine: Engine) -> None:
    while True:
        engine.step()


def request(name: str, prompt: Sequence[int], number: int = 8, **changes: object) -> SequenceRequest:
    return SequenceRequest(name, tuple(prompt), max_tokens=number, ignore_eos=True, **changes)  # type: ignore[arg-type]


@pytest.mark.slow
def test_what_a_rank_can_not_load_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file goes away between rank 0's look at it and the other's."""
    from polyfleet.executors.ranks.group import GroupExecutor

    build = GroupExecutor._build

    def elsewhere(self: GroupExecutor, kind: object, path: str, *rest: object) -> object:
        return build(self, kind, f"{path}/gone", *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(GroupExecutor, "_build", elsewhere)
    with pytest.raises(ValueError, match=r"rank 1 of 2: .*gone: there is no such file or folder"):
        Engine.load(str(folder), options(tensor_parallel=2))


def test_a_group_gives_the_tokens_of_one_rank(group: Engine, alone: Engine) -> None:
    """Prompts in pieces, more sequences than blocks (so that some are preempted), every kind of draw."""
    drawn = (
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.0, seed=5, top_k=9),
        SamplingParams(temperature=0.8, seed=9, top_p=0.9, presence_penalty=0.7),
        SamplingParams(temperature=0.0, repetition_penalty=1.3, frequency_penalty=0.5),
    )
    requests = [
        request(f"s{number}", (*COMMON[: 7 * (number % 3) + 2], 4 + number), 20, sampling=params)
        for number, params in enumerate(drawn * 2)
    ]
    found, expected = run_engine(group, requests), run_engine(alone, requests)
    assert not any(each.error for each in found.values())
    assert {name: each.token_ids for name, each in found.items()} == {
        name: each.token_ids for name, each in expected.items()
    }
    assert group.status().preemptions > 0
    assert not group.facts.speculation.startswith("off")
    assert group.status().drafts >= group.status().accepted_drafts > 0
    assert group.facts.fingerprint == alone.facts.fingerprint


def test_an_adapter_of_all_ranks(group: Engine, folder: Path, tmp_path: Path) -> None:
    """Its part on each rank: the tokens of merged weights, beside a sequence without one."""
    base = random_tensors(SHAPE)
    tensors = low_rank_tensors(base, rank=4, seed=3, size=0.3)
    whole = Engine.load(str(write_folder(tmp_path / "merged", SHAPE, merged(base, tensors, 2.0))), options(threads=1))
    adapter = group.add_adapter(str(write_adapter(tmp_path / "adapter", tensors))).fingerprint
    found = run_engine(group, [request("a", COMMON, adapter=adapter), request("b", COMMON)])
    assert found["a"].token_ids == run_engine(whole, [request("a", COMMON)])["a"].token_ids
    assert found["a"].token_ids != found["b"].token_ids
    assert group.drop_adapter(adapter)
    whole.close()


def test_a_cached_beginning_is_used_by_all_ranks(group: Engine, alone: Engine) -> None:
    for engine in (group, alone):
        run_engine(engine, [request("first", (*COMMON, 9))])
    second = [request("second", (*COMMON, 11, 5), logprobs=VOCABULARY)]
    found, expected = run_engine(group, second)["second"], run_engine(alone, second)["second"]
    assert found.cached_tokens == expected.cached_tokens == 20
    assert found.token_ids == expected.token_ids


def test_a_group_gives_and_takes_whole_prefixes(group: Engine, alone: Engine) -> None:
    prompt = tuple(reversed(COMMON))
    for giver, taker in ((group, alone), (alone, group)):
        salt = giver.facts.executor.encode() + str(id(giver)).encode()
        run_engine(giver, [request("given", prompt, cache_salt=salt)])
        assert taker.import_prefix(giver.export_prefix(prompt, salt), salt) == 16
        asked = [request("taken", prompt, cache_salt=salt)]
        found = run_engine(taker, asked)["taken"]
        assert found.cached_tokens == 16
        assert found.token_ids == run_engine(giver, asked)["taken"].token_ids


def test_each_rank_has_half_of_the_memory(group: Engine, alone: Engine) -> None:
    mine, whole = group._executor.measure(), alone._executor.measure()
    assert mine.kv_per_token * 2 == whole.kv_per_token
    assert whole.weights / 2 < mine.weights < whole.weights * 0.75, "embedding and norms are whole on each"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"tensor_parallel": 4096}, r"tensor_parallel: must be at most .* the number of cores, not 4096"),
        ({"tensor_parallel": 2, "executor": "persistent"}, "the persistent executor does not compute in a group"),
    ],
)
def test_a_group_that_can_not_be_is_refused(folder: Path, changes: dict[str, object], sentence: str) -> None:
    with pytest.raises((FieldError, ValueError), match=sentence):
        Engine.load(str(folder), options(**changes))


def test_heads_that_ranks_can_not_share_are_refused(tmp_path: Path) -> None:
    odd = write_folder(tmp_path / "odd", TinyShape(heads=3, kv_heads=3))
    with pytest.raises(ValueError, match="the model's 3 heads can't be shared evenly by 2 ranks"):
        Engine.load(str(odd), options(tensor_parallel=2))


def test_a_rank_that_dies_at_load_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "MODULE", "polyfleet.executors.no_such_module")
    before = {each.pid for each in psutil.Process().children()}
    with pytest.raises(ValueError, match="rank 1 of 2 ended with status 1"):
        Engine.load(str(folder), options(tensor_parallel=2))
    assert {each.pid for each in psutil.Process().children()} <= before


@pytest.mark.slow
def test_a_rank_beats_once_its_libraries_are_loaded(tmp_path: Path) -> None:
    """While they are, nothing else runs in it: on a busy machine it would be taken for one that hangs."""
    group = members.Members(2)
    meeting = {"backend": "gloo", "store": str(tmp_path / "store"), "devices": ["cpu"] * 2}  # where it waits for rank 0
    group.tell({"do": "start", "size": 2, "options": asdict(EngineOptions()), **meeting})
    while not group.board.beats[1]:
        group.check()
        time.sleep(0.01)
    loaded = Path(f"/proc/{group.pids[0]}/maps").read_text()
    os.kill(group.pids[0], signal.SIGKILL)
    group.close()
    assert "libtorch" in loaded


@pytest.mark.slow
def test_a_rank_that_dies_while_all_meet_ends_the_process(folder: Path) -> None:
    """Within seconds: the others wait for it in a library that nothing else wakes."""
    script = """if True:
        import os, signal, sys
        from polyfleet.engine import Engine
        from polyfleet.executors.ranks import group
        from polyfleet.wire.options import EngineOptions

        class Meeting(group.DistributedRanks):
            def __init__(self, *meeting, **more):
                [os.kill(pid, signal.SIGKILL) for pid in executors[0].pids]
                super().__init__(*meeting, **more)

        executors, build = [], group.GroupExecutor._build
        group.GroupExecutor._build = lambda self, *rest: executors.append(self) or build(self, *rest)
        group.DistributedRanks = Meeting
        Engine.load(sys.argv[1], EngineOptions(device="cpu", executor="eager", tensor_parallel=2))
    """
    command = [sys.executable, "-c", script, str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    assert ended.stderr.strip().splitlines()[-1].startswith("rank 1 of 2 was killed by SIGKILL, and a call")


def test_a_rank_that_hangs_takes_the_group_down(group: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a step; the alarm wakes who is idle."""
    monkeypatch.setattr(members, "SILENCE_LOOKS", 50)
    group.add(request("cut", COMMON, 30))
    group.step()
    os.kill(ranks(group)[0], signal.SIGSTOP)
    begun = time.monotonic()
    with pytest.raises(DeviceTimeout, match="rank 1 of 2 showed no sign of life for 5 s"):
        step_for_ever(group)
    assert time.monotonic() - begun < 60, "a bound against hanging"
    assert group.alarm is not None
    assert select.select([group.alarm], [], [], 10)[0]
    with pytest.raises(DeviceTimeout, match="rank 1 of 2"):
        group.step()
