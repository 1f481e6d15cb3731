"""A disk tier on file systems that are full, have room again, and are read-only: the engine answers as ever."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from bench.chaos.disk import SmallDisk

ENGINE = """
import json, sys
from pathlib import Path
from tests.support.tiny_models import TinyShape, poisoned_model
from tests.unit.engine.test_shelf import PROMPTS, ask, on_disk
from polyfleet.kvcache import disk
from polyfleet.kvcache.travelling import DISK_PROBLEMS

def seen():
    status = target.status()
    return {"blocks": status.disk_blocks, **dict(zip(DISK_PROBLEMS, status.disk_problems, strict=True))}

disk.RETRY_SECONDS = 0.0
target = on_disk(poisoned_model(Path(sys.argv[1]), TinyShape(), 95), Path(sys.argv[2]))
print(json.dumps(seen()), flush=True)
for line in sys.stdin:
    tenant, *awaited = line.split()
    before = seen()
    for _ in range(100):  # what is evicted is written beside the steps, so not at once
        answers = [ask(target, prompt, tenant.encode())[0] for prompt in PROMPTS]
        if all(seen()[each] > before[each] for each in awaited):
            break
    print(json.dumps({"answers": answers, **seen()}), flush=True)
"""


class Asked:
    """The engine of a process. `words`: a tenant, and what must have grown when its prompts have been answered."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def ask(self, words: str = "") -> Any:
        """Answers, blocks on disk, and problems so far; without words what it begins with."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if words:
            print(words, file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())


@contextmanager
def engine(disk: SmallDisk, models: Path) -> Iterator[Asked]:
    """One whose blocks go there."""
    models.mkdir()
    command = [*disk.command, sys.executable, "-c", ENGINE, str(models), str(disk.folder)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        yield Asked(process)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """Of few megabytes, in a mount namespace."""
    small = SmallDisk(tmp_path / "disk")
    try:
        small.__enter__()
    except OSError as error:
        pytest.skip(str(error))
    yield small
    small.__exit__(None, None, None)


def test_a_full_or_read_only_disk_costs_no_answer(tmp_path: Path, disk: SmallDisk) -> None:
    with engine(disk, tmp_path / "one") as one:
        assert one.ask()["blocks"] == 0
        disk.fill()
        full = one.ask("a unwritable")
        assert full["blocks"] == 0
        disk.clear()
        room = one.ask("b blocks")
        assert room["answers"] == full["answers"]
        assert room["unreadable"] == room["refused"] == 0
    subprocess.run([*disk.command, "mount", "-o", "remount,ro", str(disk.folder)], check=True)
    with engine(disk, tmp_path / "two") as two:
        two.ask()
        closed = two.ask("b")
        assert closed["answers"] == full["answers"]
        assert closed["blocks"] == 0
