"""An "interpreter" for launchers in tests: runs `-m polyfleet.serving …` with the fake engine, without torch."""

import os
import stat
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def fake_interpreter(folder: Path, python: str = sys.executable) -> str:
    """Path of a script that calls `python` with its arguments and `--engine tests.support.fake_engine:load`."""
    script = folder / "python-with-fake-engine"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{python}" "$@" --engine tests.support.fake_engine:load\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return os.fspath(script)
