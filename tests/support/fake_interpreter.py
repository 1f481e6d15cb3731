"""An "interpreter" for launchers in tests, whose `-m polyfleet.serving …` has the fake engine, without torch."""

import os
import stat
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# The fake engine may stand for a family that this machine lacks, so its device is all but unwatched.
FLAGS = "--telemetry-interval 86400"


def fake_interpreter(folder: Path, python: str = sys.executable) -> str:
    """Path of a script that calls `python` with the worker's arguments and FLAGS."""
    script = folder / "python-with-fake-engine"
    script.write_text(
        f'#!/bin/sh\nshift 2\nPYTHONPATH="{ROOT}" exec "{python}" -m tests.support.fake_engine_worker "$@" {FLAGS}\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return os.fspath(script)
