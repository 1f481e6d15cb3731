"""A simulated worker in real time: every token can be checked, what is cancelled frees its room, failures come due."""

import sys
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.support.text_assets import render_chat
from tests.unit.serving.test_serving_engine_process import engine_at_work
from tests.unit.serving.test_serving_engine_process import request as adding

from polyfleet.cli.commands.simulate_workers import Herd, find
from polyfleet.cli.errors import CliError, ExitCode
from polyfleet.cli.main import cli
from polyfleet.cli.simulated.engine import TimedEngine, load
from polyfleet.serving.engine_protocol import ServedEngine
from polyfleet.simulator.fleet_file import Failure, FleetFile, Group, Speed, read_fleet
from polyfleet.simulator.tokens import answer, tokenizer_document
from polyfleet.text.model_text import ModelText
from polyfleet.wire.answers import FinishReason
from polyfleet.wire.limits import FieldError
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import Pooling, SequenceRequest

QUICK = Speed(prefill_tokens_per_second=1e6, step_seconds=1e-4, sequence_seconds=1e-5)
PROMPT = tuple(b"the quick brown fox jumps over the lazy dog, and once more: the quick brown fox " * 2)


def engine(**options: object) -> TimedEngine:
    return TimedEngine("w-0", Group(accelerator="cpu", steps=QUICK, **options))  # type: ignore[arg-type]


def run(wanted: TimedEngine, *requests: SequenceRequest) -> dict[str, list[int]]:
    for request in requests:
        wanted.add(request)
    found: dict[str, list[int]] = {request.sequence_id: [] for request in requests}
    while wanted.has_work:
        for update in wanted.step():
            found[update.sequence_id] += [token.token_id for token in update.tokens]
    wanted.check()
    return found


def test_tokens_are_a_function_of_prompt_choice_and_position_also_where_another_worker_goes_on() -> None:
    first = SequenceRequest("a", PROMPT, max_tokens=20)
    second = SequenceRequest("b", PROMPT, max_tokens=20, choice=1)
    found = run(engine(max_sequences=1), first, second)
    assert found == {"a": answer(PROMPT, 20), "b": answer(PROMPT, 20, choice=1)}
    moved = SequenceRequest("c", PROMPT, max_tokens=20, generated_ids=tuple(found["a"][:7]))
    assert run(engine(), moved)["c"] == found["a"][7:]
    stop = SequenceRequest("d", PROMPT, max_tokens=20, stop_token_ids=(found["a"][5],))
    assert run(engine(), stop)["d"] == found["a"][: found["a"].index(found["a"][5])]


class Checked(TimedEngine):
    """Tells of a look at its books."""

    seen = threading.Event()

    def check(self) -> None:
        super().check()
        self.seen.set()


def test_idleness_behind_work_is_as_the_engine_s_process_wants_it() -> None:
    wanted: ServedEngine = Checked("w-0", Group(accelerator="cpu", steps=QUICK))
    with engine_at_work(lambda *_: wanted) as (peer, _):
        peer.load()
        peer.send(adding("a", tokens=1))
        peer.news()
        assert Checked.seen.wait(10)


def test_it_tells_what_a_real_one_tells() -> None:
    wanted = engine()
    for name, cached in (("a", 0), ("b", 128)):
        wanted.add(SequenceRequest(name, PROMPT, max_tokens=3, logprobs=2))
        updates = [update for _ in range(3) for update in wanted.step()]
        assert [update.cached_tokens for update in updates] == [cached, None, None]
        assert updates[-1].finish_reason is FinishReason.LENGTH
        assert all(len(update.tokens[0].top_ids) == 2 for update in updates)
    status = wanted.status()
    assert (status.admitted, status.finished, status.generated_tokens, status.steps) == (2, 2, 6, 6)
    assert status.prefill_tokens_per_second > 0
    wanted.add(SequenceRequest("e", PROMPT, pooling=Pooling.MEAN))
    (update,) = wanted.step()
    assert (len(update.embedding), update.finish_reason) == (wanted.facts.hidden_size, FinishReason.STOP)
    for wrong in (SequenceRequest("f", (256,), max_tokens=1), SequenceRequest("g", (1,) * 40_000, max_tokens=1)):
        with pytest.raises(FieldError):
            wanted.add(wrong)


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_who_is_cancelled_leaves_nothing_wherever_it_stands(steps: int) -> None:
    wanted = engine(max_sequences=2, step_tokens=100)
    for name in "abc":
        wanted.add(SequenceRequest(name, PROMPT, max_tokens=50))
    for _ in range(steps):
        wanted.step()
    assert [wanted.cancel(name) for name in "abcd"] == [True, True, True, False]
    assert not wanted.has_work
    wanted.check()
    status = wanted.status()
    assert (status.running_sequences, status.waiting_sequences, status.free_blocks) == (0, 0, wanted.facts.num_blocks)
    assert (status.admitted, status.cancelled) == (3, 3)


def test_its_text_is_bytes() -> None:
    text = ModelText(tokenizer_document())
    assert tuple(text.encode("fox ß")) == tuple("fox ß".encode())
    ids = answer(PROMPT, 30)
    detokenizer = text.detokenizer(PROMPT)
    assert detokenizer.add(ids) + detokenizer.finish() == bytes(ids).decode()
    assert render_chat(text, [{"role": "user", "content": "hi"}]) == "user: hi\n"


def test_a_worker_is_found_by_its_id_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text("groups: [{name: a-0, accelerator: cpu, workers: 3}, {name: a, accelerator: cpu}, "
                    "{name: a, accelerator: cuda, kv_tokens: 320}]")  # fmt: skip
    ids = [each.worker_id for each in read_fleet(path).each_worker()]
    assert ids == ["a-0-0", "a-0-1", "a-0-2", "a-0", "a-0-2-2"]
    assert load(f"{path}#a-0-2-2", EngineOptions(), lambda *_: None).facts.num_blocks == 20
    with pytest.raises(ValueError, match="there is no worker 'b'"):
        load(f"{path}#b", EngineOptions(), lambda *_: None)
    with pytest.raises(CliError, match="a-0-0, a-0-1"):
        find(read_fleet(path), "b")


def test_a_herd_is_there_but_for_its_failures(capfd: pytest.CaptureFixture[str]) -> None:
    failures = (Failure(at=0.2, seconds=0.4), Failure(at=0.5, seconds=0.3))  # to 0.8 in all
    fleet = FleetFile(groups=(Group(accelerator="cpu", name="a", failures=failures),))
    now = 100.0
    herd = Herd(fleet.each_worker(), [sys.executable, "-c", "import time; time.sleep(60)"], lambda: now)
    try:
        for passed, there in ((0.0, True), (0.1, True), (0.2, False), (0.65, False), (0.9, True), (60.0, True)):
            now = 100.0 + passed
            herd.look()
            assert bool(herd._running) is there
    finally:
        herd.stop()
    assert "a-0 fails." in capfd.readouterr().err


def test_what_runs_when_a_herd_stops_may_finish(tmp_path: Path) -> None:
    """A second SIGTERM would cut it off."""
    script = "import signal, sys, time\ndef drain(*_):\n  signal.signal(signal.SIGTERM, signal.SIG_DFL)\n"
    script += "  time.sleep(0.5)\n  sys.exit(7)\nsignal.signal(signal.SIGTERM, drain)\n"
    script += f"open({str(tmp_path / 'up')!r}, 'w')\ntime.sleep(60)"
    herd = Herd(FleetFile(groups=(Group(accelerator="cpu"),)).each_worker(), [sys.executable, "-c", script])
    herd.look()
    while not (tmp_path / "up").exists():
        time.sleep(0.01)
    process, _ = herd._running["cpu-0"]
    herd.stop()
    assert process.returncode == 7


def test_more_processes_than_a_machine_can_hold_are_refused(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text("groups: [{accelerator: cpu, workers: 257}]")
    result = CliRunner().invoke(cli, ["simulate-workers", str(tmp_path / "fleet.yaml")])
    assert (result.exit_code, "has 257 workers, more than 256" in result.output) == (ExitCode.BAD_INPUT, True)
    result = CliRunner().invoke(cli, ["simulate-workers", str(tmp_path / "fleet.yaml"), "--only", "cpu-257"])
    assert (result.exit_code, "There is no worker 'cpu-257'" in result.output) == (ExitCode.BAD_INPUT, True)


def test_a_herd_whose_worker_can_not_run_ends() -> None:
    herd = Herd(FleetFile(groups=(Group(accelerator="cpu"),)).each_worker(), [sys.executable, "-c", "exit(3)"])
    herd.look()
    herd._running["cpu-0"][0].wait()
    with pytest.raises(CliError, match="cpu-0 ended with status 3 at once"):
        herd.look()


@pytest.mark.parametrize("option", ["--listen=127.0.0.1:0", "--advertise-host=127.0.0.2"])
def test_an_address_is_that_of_one_worker(option: str) -> None:
    result = CliRunner().invoke(cli, ["simulate-workers", option])
    problem = f"{option.partition('=')[0]} is for the one worker of --only"
    assert (result.exit_code, problem in result.output) == (ExitCode.BAD_INPUT, True)
