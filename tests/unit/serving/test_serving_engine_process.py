"""The engine process's loop, over a real socket pair, with the engine in a thread."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import fake_engine
from tests.support.fake_tokens import fake_tokens

from polyfleet.engine.canary.canary import CanaryResult, CanaryVerdict
from polyfleet.engine.facts import EngineStatus
from polyfleet.serving import engine_pacing
from polyfleet.serving.engine_process import Overtaking, WorkerSocket, run, sentence
from polyfleet.serving.engine_protocol import EngineFactory
from polyfleet.serving.messages import (
    HEADER_BYTES,
    Add,
    Cancel,
    Command,
    Event,
    Failed,
    Load,
    Loaded,
    Loading,
    StepNews,
    decode_event,
    frame,
)
from polyfleet.wire.options import EngineOptions
from polyfleet.wire.requests import SequenceRequest


class Peer:
    """The worker's side, blocking."""

    def __init__(self, end: socket.socket, urgent: socket.socket) -> None:
        self._stream = end.makefile("rwb")
        self._urgent = urgent
        self._num_adds = 0
        self.status = EngineStatus()  # the last one that was told

    def send(self, *commands: Command) -> None:
        self._num_adds += sum(isinstance(command, Add) for command in commands)
        self._stream.write(b"".join(map(frame, commands)))
        self._stream.flush()

    def cancel(self, *names: str) -> None:
        self._urgent.sendall(b"".join(frame(Cancel(name, self._num_adds)) for name in names))

    def event(self) -> Event:
        header = self._stream.read(HEADER_BYTES)
        if not header:
            raise EOFError
        return decode_event(self._stream.read(int.from_bytes(header, "big")))

    def load(self, path: str = "fake:canary=0", canary_interval: float = 0.0) -> Event:
        self.send(Load(path, EngineOptions(), canary_interval))
        while isinstance(event := self.event(), Loading):
            pass
        return event

    def news(self) -> StepNews:
        event = self.event()
        assert isinstance(event, StepNews)
        self.status = event.status or self.status
        return event


class Result:
    status: int | None = None


@contextmanager
def engine_at_work(factory: EngineFactory = fake_engine.load) -> Iterator[tuple[Peer, Result]]:
    (mine, its), (my_urgent, its_urgent) = socket.socketpair(), socket.socketpair()
    result = Result()

    def work() -> None:
        with its, its_urgent:
            result.status = run(WorkerSocket(its, its_urgent), factory)

    thread = threading.Thread(target=work)
    thread.start()
    peer = Peer(mine, my_urgent)
    try:
        yield peer, result
    finally:
        peer._stream.close()
        mine.close()
        my_urgent.close()
        thread.join()


def request(name: str, tokens: int = 3, first: int = 1) -> Add:
    return Add(SequenceRequest(name, (first, 2), max_tokens=tokens))


def test_each_step_is_one_message_and_the_last_has_a_status() -> None:
    with engine_at_work() as (peer, result):
        assert isinstance(peer.load(), Loaded)
        peer.send(request("a"), request("b"))
        tokens: dict[str, list[int]] = {"a": [], "b": []}
        while peer.status.finished < 2:
            news = peer.news()
            assert len({update.sequence_id for update in news.updates}) == len(news.updates)
            for update in news.updates:
                tokens[update.sequence_id] += [token.token_id for token in update.tokens]
        assert tokens == {name: fake_tokens([1, 2], 3) for name in ("a", "b")}
        assert peer.status.running_sequences == 0
    assert result.status == 0


def test_the_canary_is_answered_before_the_model_counts_as_loaded_and_then_at_intervals(tmp_path: Path) -> None:
    flag = tmp_path / "wrong"
    with engine_at_work() as (peer, _):
        loaded = peer.load(f"fake:wrong_while={flag}", canary_interval=0.05)
        assert isinstance(loaded, Loaded)
        assert loaded.canary == CanaryVerdict(CanaryResult.RIGHT)
        assert loaded.status.finished == 1
        flag.touch()
        assert next_verdict(peer, CanaryResult.WRONG).reason.startswith("The model answers wrongly on this device: ")
        flag.unlink()
        next_verdict(peer, CanaryResult.RIGHT)


def test_a_canary_among_sequences_is_told_apart(tmp_path: Path) -> None:
    with engine_at_work() as (peer, _):
        peer.load("fake:step_seconds=0.005", canary_interval=0.05)
        peer.send(request("a", tokens=60))
        tokens: list[int] = []
        verdicts = 0
        while len(tokens) < 60:
            news = peer.news()
            assert {update.sequence_id for update in news.updates} <= {"a"}
            tokens += [token.token_id for update in news.updates for token in update.tokens]
            verdicts += news.canary == CanaryVerdict(CanaryResult.RIGHT)
        assert tokens == fake_tokens([1, 2], 60)
        assert verdicts >= 1


def test_a_model_that_answers_wrongly_from_the_start_is_loaded_with_that_verdict(tmp_path: Path) -> None:
    with engine_at_work() as (peer, _):
        loaded = peer.load(f"fake:wrong_while={tmp_path}")
        assert isinstance(loaded, Loaded)
        assert loaded.canary is not None
        assert loaded.canary.result is CanaryResult.WRONG


def next_verdict(peer: Peer, result: CanaryResult) -> CanaryVerdict:
    """The next verdict of that kind; one that was under way may come before it."""
    while (verdict := peer.news().canary) is None or verdict.result is not result:
        pass
    return verdict


def test_a_refusal_names_the_field_and_touches_no_other_sequence() -> None:
    with engine_at_work() as (peer, _):
        peer.load()
        peer.send(request("a", tokens=0), request("b", tokens=1))
        news = [peer.news()]
        while peer.status.finished < 1:
            news.append(peer.news())
        (refusal,) = [refusal for each in news for refusal in each.refusals]
        assert (refusal.sequence_id, refusal.reason) == ("a", "max_tokens: must be 1 or more, not 0")


def test_cancel_is_answered_with_a_status_even_when_nothing_runs() -> None:
    with engine_at_work() as (peer, _):
        peer.load("fake:step_seconds=0.01")
        peer.send(request("a", tokens=10_000))
        peer.news()
        assert peer.status.running_sequences == 1
        peer.cancel("a", "unknown")
        while peer.status.running_sequences:
            peer.news()
        assert (peer.status.cancelled, peer.status.free_blocks) == (1, fake_engine.BLOCKS)


def test_a_cancel_overtakes_a_burst_of_prompts() -> None:
    """It is carried out before the next step, though megabytes of prompts wait to be read before it."""
    with engine_at_work() as (peer, _):
        peer.load("fake:step_seconds=0.05,max_sequences=1,canary=0")
        peer.send(request("a", tokens=10_000))
        peer.news()
        assert peer.status.running_sequences == 1
        prompt = (1, 2) * 15_000
        burst = [Add(SequenceRequest(f"b{number}", prompt, max_tokens=1)) for number in range(40)]
        sender = threading.Thread(target=peer.send, args=burst)
        sender.start()
        peer.news()
        before = peer.status
        peer.cancel("a", "b39")
        news = [peer.news(), peer.news()]  # that of the step under way, and the next one
        assert before.cancelled == 0
        assert peer.status.cancelled == 1
        assert peer.status.admitted - peer.status.finished < 40  # most of the burst has not been read yet
        while peer.status.finished < 39:
            news.append(peer.news())
        sender.join()
        seen = {update.sequence_id for each in news for update in each.updates}
        assert "b39" not in seen
        assert "b38" in seen


@settings(deadline=None)
@given(st.lists(st.sampled_from("abcd"), max_size=30), st.data())
def test_whatever_overtakes_what_is_cancelled_never_stays(names: list[str], data: st.DataObject) -> None:
    """Adds and Cancels each keep their own order; a Cancel may be read at any time behind its sending."""
    overtaking, sent = Overtaking(), 0
    alive: set[str] = set()
    adds: list[Command] = []
    cancels: list[Command] = []
    open_names: set[str] = set()
    for number, name in enumerate(names):
        unique = f"{name}{number}"
        if len(open_names) > 0 and data.draw(st.booleans()):
            cancelled = data.draw(st.sampled_from(sorted(open_names)))
            open_names.discard(cancelled)
            cancels.append(Cancel(cancelled, sent))
        else:
            sent += 1
            open_names.add(unique)
            adds.append(Add(SequenceRequest(unique, (1,))))
    while adds or cancels:
        read = [cancels.pop(0) for _ in range(data.draw(st.integers(0, len(cancels))))]
        read += [adds.pop(0) for _ in range(data.draw(st.integers(0 if cancels else 1, len(adds))) if adds else 0)]
        for command in overtaking.sort(read):
            alive |= {command.request.sequence_id} if isinstance(command, Add) else set()
            alive -= {command.sequence_id} if isinstance(command, Cancel) else set()
    assert alive == open_names
    assert not overtaking._early


def test_an_idle_engine_checks_its_books_and_a_leak_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_pacing, "IDLE_CHECK_SECONDS", 0.05)
    with engine_at_work() as (peer, result):
        peer.load("fake:leak=1,canary=0")
        peer.send(request("a", tokens=1))
        peer.news()
        assert peer.status.finished == 1
        event = peer.event()
        assert event == Failed("The engine broke down: 1 block has no owner")
        with pytest.raises(EOFError):
            peer.event()
    assert result.status == 1


def test_an_error_in_a_step_is_told_in_one_sentence() -> None:
    with engine_at_work() as (peer, result):
        peer.load()
        peer.send(request("a", first=fake_engine.BREAK))
        assert peer.event() == Failed("The engine broke down: the device fell off the bus")
    assert result.status == 1


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("fake:unusable=1", "fake:unusable=1 is truncated: it ends in the middle of a tensor."),
        ("fake:absent=1", "fake:absent=1 can't be loaded: no such accelerator here"),
    ],
)
def test_a_failed_load_says_why_and_ends(path: str, reason: str) -> None:
    with engine_at_work() as (peer, result):
        assert peer.load(path) == Failed(reason)
        with pytest.raises(EOFError):
            peer.event()
    assert result.status == 3


def test_the_worker_may_leave_at_any_time() -> None:
    with engine_at_work() as (peer, loading):
        peer.send(Load("fake:load_seconds=0.2", EngineOptions()))
        peer.event()
    with engine_at_work() as (peer, stepping):
        peer.load("fake:step_seconds=0.01")
        peer.send(request("a", 10_000))
        peer.event()
    with engine_at_work() as (peer, idle):
        peer.load()
    assert (loading.status, stepping.status, idle.status) == (0, 0, 0)


def test_sentences() -> None:
    assert sentence(ValueError("f: no"), "lead") == "f: no"
    assert sentence(RuntimeError("one\ntwo"), "lead") == "lead: one"
    assert sentence(MemoryError(), "lead") == "lead: MemoryError"
