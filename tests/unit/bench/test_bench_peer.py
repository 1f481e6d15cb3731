"""vLLM beside ours, here with a package of that name that plays it: its answers, its end, and why it did not start."""

import time
from pathlib import Path

import psutil
import pytest
from bench.card.peer import Peer, causes

PLAYED = """
import subprocess, sys
__version__ = "1.2"
class SamplingParams:
    def __init__(self, max_tokens, **_): self.count = max_tokens
class Output:
    def __init__(self, count): self.token_ids = [5] * count; self.outputs = [self]
class LLM:
    def __init__(self, model, **options):
        self.engine = subprocess.Popen([sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"])
        open(model + "/engine", "w").write(str(self.engine.pid))
    def generate(self, prompts, params, use_tqdm): return [Output(params.count) for _ in prompts]
"""
BROKEN = """
import sys
for number in range(40): print("INFO", number, file=sys.stderr)
print("(EngineCore pid=7) ERROR [core.py:9] ValueError: Too little memory is free.", file=sys.stderr)
for number in range(40): print("INFO", number, file=sys.stderr)
raise RuntimeError("Engine core initialization failed. See root cause above.")
"""


def start(folder: Path, package: str) -> Peer:
    (folder / "site").mkdir()
    (folder / "site" / "vllm.py").write_text(package)
    return Peer(folder, str(folder / "site"), 512)


def test_it_answers_and_leaves_no_process_behind(tmp_path: Path) -> None:
    peer = start(tmp_path, PLAYED)
    try:
        peer.ready()
        assert peer.name == "vllm 1.2"
        assert peer.seconds([[1, 2], [3]], 4) >= 0.0
        engine = psutil.Process(int((tmp_path / "engine").read_text()))
    finally:
        peer.close()
    gone = time.monotonic() + 10
    while engine.is_running() and engine.status() != psutil.STATUS_ZOMBIE and time.monotonic() < gone:
        time.sleep(0.02)
    assert not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE  # it held the card's memory


def test_it_says_what_kept_it_from_starting(tmp_path: Path) -> None:
    peer = start(tmp_path, BROKEN)
    try:
        with pytest.raises(RuntimeError) as found:
            peer.ready()
    finally:
        peer.close()
    lead, cause, *rest = str(found.value).splitlines()
    assert lead == "vLLM's process ended with status 1:"
    assert cause == "ValueError: Too little memory is free."
    assert rest == ["RuntimeError: Engine core initialization failed. See root cause above."]


def test_without_an_error_the_end_of_the_log_is_said() -> None:
    assert causes([f"line {number}" for number in range(20)], most=2) == ["line 18", "line 19"]
