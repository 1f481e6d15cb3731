"""Which looks at a process in a row say that it hangs."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from tests.support.ports import free_address

from polyfleet.process import hangs
from polyfleet.process.hangs import ASK_SECONDS, STOPPED_LOOKS, UNANSWERED_LOOKS, Looks, fetched


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="the operating system does not tell who is stopped")
def test_one_that_is_stopped_for_some_looks_hangs_and_one_that_goes_on_does_not(
    sleeper: "subprocess.Popen[bytes]",
) -> None:
    looks = Looks()
    for _ in range(STOPPED_LOOKS + 1):
        assert not looks.at(sleeper.pid)
        assert not looks.hung
    sleeper.send_signal(signal.SIGSTOP)
    os.waitpid(sleeper.pid, os.WUNTRACED)
    assert [(looks.at(sleeper.pid), looks.hung)[1] for _ in range(STOPPED_LOOKS)] == [False] * (STOPPED_LOOKS - 1) + [
        True
    ]
    sleeper.send_signal(signal.SIGCONT)
    os.waitpid(sleeper.pid, os.WCONTINUED)
    assert not looks.at(sleeper.pid)
    assert not looks.hung


def test_one_that_lets_all_questions_wait_hangs_and_one_answer_begins_anew() -> None:
    looks = Looks()
    for _ in range(UNANSWERED_LOOKS - 1):
        looks.asked(ASK_SECONDS)
        assert not looks.hung
    looks.asked(0.1)
    for _ in range(UNANSWERED_LOOKS - 1):
        looks.asked(ASK_SECONDS)
    assert not looks.hung
    looks.asked(ASK_SECONDS + 1)
    assert looks.hung


def test_nobody_there_nonsense_and_silence_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hangs, "ASK_SECONDS", 0.05)
    with pytest.raises(ConnectionRefusedError):
        fetched(f"http://{free_address()}/healthz")
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/healthz"
        with pytest.raises(TimeoutError):
            fetched(url)
        server.accept()[0].close()

        def answer() -> None:
            connection, _ = server.accept()
            connection.recv(4096)
            connection.sendall(b"no HTTP\r\n\r\n")
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(OSError, match="nonsense"):
            fetched(url)
        thread.join()
