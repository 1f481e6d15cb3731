"""`polyfleet serve` is stopped in every state: it ends soon, and no process, file or port is left."""

import os
import re
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from tests.support.serve_process import ServeProcess, wait_for
from tests.support.streams import Stream

pytestmark = pytest.mark.slow

PROMPT = [33, 28, 216, 34, 28, 216, 35, 28, 216, 36, 28, 216]
MANY = 4000  # tokens: more than there is time for
INT, TERM, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
SHARED = Path("/dev/shm")


def until(pattern: str) -> Callable[[ServeProcess, ExitStack], None]:
    """A state of the start: a process like this is there."""

    def reach(serve: ServeProcess, _: ExitStack) -> None:
        wait_for(lambda: serve.find(pattern), f"{pattern} to be there")

    return reach


def serving(serve: ServeProcess, _: ExitStack) -> None:
    serve.wait_ready()


def with_streams(serve: ServeProcess, exits: ExitStack) -> None:
    serve.wait_ready()
    channel = exits.enter_context(grpc.insecure_channel(serve.grpc))
    for _ in range(4):
        Stream(channel, PROMPT, MANY).wait_started()


def without(part: str, number: signal.Signals) -> Callable[[ServeProcess, ExitStack], None]:
    """The state right after a part of a stack that serves got this signal."""

    def reach(serve: ServeProcess, _: ExitStack) -> None:
        serve.wait_ready()
        (victim,) = serve.find(part)
        victim.send_signal(number)

    return reach


def ray_starting_again(serve: ServeProcess, exits: ExitStack) -> None:
    without("raylet", signal.SIGKILL)(serve, exits)
    wait_for(lambda: "is started again" in serve.output, "Ray to be missed")
    wait_for(lambda: serve.find("gcs_server"), "the next Ray")


@pytest.fixture
def private(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files of this test's stack alone, with a path short enough for Ray."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="s") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def shared_files() -> set[str]:
    return set(os.listdir(SHARED)) if SHARED.is_dir() else set()


def named(signals: tuple[signal.Signals, ...]) -> str:
    return "+".join(each.name for each in signals)


STATES: dict[str, Callable[[ServeProcess, ExitStack], None]] = {
    "gateway-starts": until(r"polyfleet\.gateway"),
    "ray-is-imported": until(r"polyfleet\.scheduler"),
    "ray-starts": until("gcs_server"),
    "ray-joins": until("raylet"),
    "scheduler-starts": until("^ray::SchedulerActor"),
    "worker-loads": until(r"polyfleet\.serving"),
    "serving": serving,
    "streaming": with_streams,
    "raylet-just-killed": without("raylet", signal.SIGKILL),
    "raylet-hangs": without("raylet", signal.SIGSTOP),
    "control-store-hangs": without("gcs_server", signal.SIGSTOP),
    "scheduler-hangs": without(r"^ray::SchedulerActor", signal.SIGSTOP),
    "driver-just-killed": without(r"polyfleet\.scheduler", signal.SIGKILL),
    "ray-starts-again": ray_starting_again,
}
# Each state is left by one signal and by two, which of them in turn: all are heard by the same ear.
ONCE, TWICE = ((INT,), (TERM,), (HUP,)), ((INT, INT), (TERM, INT))
CASES = [
    pytest.param(reach, signals[number % len(signals)], id=f"{state}-{named(signals[number % len(signals)])}")
    for number, (state, reach) in enumerate(STATES.items())
    for signals in (ONCE, TWICE)
]


@pytest.mark.parametrize(("reach", "signals"), CASES)
def test_a_stop_leaves_nothing(
    tmp_path: Path,
    private: Path,
    reach: Callable[[ServeProcess, ExitStack], None],
    signals: tuple[signal.Signals, ...],
    record_property: Callable[[str, object], None],
) -> None:
    shared = shared_files()
    serve = ServeProcess(tmp_path).start()
    with ExitStack() as exits:
        reach(serve, exits)
        seen = {each.pid for each in serve.processes()}
        began = time.monotonic()
        assert serve.process
        for number in signals:
            os.kill(serve.process.pid, number)
            time.sleep(0.3)
        code = serve.process.wait(120)
        record_property("stop_seconds", round(time.monotonic() - began, 1))
        print(f"stopped in {time.monotonic() - began:.1f} s")
    assert code in (0, 130), serve.output
    assert "Traceback" not in serve.output
    assert serve.processes() == set()
    assert serve.locks() == []
    assert os.listdir(private) == []
    assert not [name for name in shared_files() - shared if seen & set(map(int, re.findall(r"\d+", name)))]
    for address in (serve.grpc, serve.http, serve.fleet, serve.metrics, serve.gateway_metrics):
        host, port = address.split(":")
        socket.create_server((host, int(port))).close()
